//! A cheap load generator for brokers that speak RocketMQ's remoting protocol. See `--help` and `driver.rs`.

mod driver;
mod frame;
mod histogram;
mod link;
mod options;
mod produce;
mod pull;
mod report;
#[allow(dead_code)] // the kernel also verifies
#[path = "../../../store/kernel/src/signature.rs"]
mod signature;
mod tls;

use std::process::ExitCode;

use options::Mode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments
        .iter()
        .any(|argument| argument == "--help" || argument == "help")
    {
        println!("{}", options::USAGE);
        return ExitCode::SUCCESS;
    }
    let options = match options::parse(&arguments) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("loadgen: {error} (loadgen --help lists the options)");
            return ExitCode::from(2);
        }
    };
    let outcome = match options.mode {
        Mode::Produce => driver::run(&options, &mut produce::Produce::new(&options)),
        Mode::Pull => driver::run(&options, &mut pull::Pull::new(&options)),
    };
    match outcome {
        Ok(outcome) => {
            println!("{}", report::json(&options, &outcome, report::cpu_seconds()));
            ExitCode::from(u8::from(!outcome.totals.errors.is_empty()))
        }
        Err(error) => {
            eprintln!("loadgen: {}: {error}", options.address);
            ExitCode::from(1)
        }
    }
}

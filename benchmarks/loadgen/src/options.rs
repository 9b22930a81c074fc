//! `--name value` pairs, each known by its name; anything else is an error that says so.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

pub const USAGE: &str = "\
loadgen produce|pull --address HOST:PORT --topic TOPIC [options]
  --connections N     connections (1)
  --outstanding W     requests in flight on each connection (1)
  --queues Q          queues of the topic, 0 to Q-1 (8)
  --seconds S         length of the measured part (5)
  --warmup S          seconds before it, not measured (0)
  --count N           stop after N messages instead; everything is measured
  --group NAME        producer or consumer group (loadgen)
  --tls yes           use TLS, and accept each certificate
  --timeout S         give up when nothing is answered for so long (30)
  --every S           a new request each S seconds instead of after each answer; times then count from when it was due
                      if the answer before it came later than that
produce: --size BYTES  body size (1024);  --tag TAG;  --order random|round  choice of the queue (random)
         --access-key KEY --secret-key SECRET  sign each message
pull:    --batch N     messages asked for at once (32)
Prints one JSON object. Exit status: 0 done, 1 connections lost or answers wrong (named under \"errors\"), 2 usage.";

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Mode {
    Produce,
    Pull,
}

#[derive(Debug)]
pub struct Options {
    pub mode: Mode,
    pub address: SocketAddr,
    pub topic: String,
    pub group: String,
    pub connections: usize,
    pub outstanding: usize,
    pub queues: u32,
    pub seconds: Duration,
    pub warmup: Duration,
    pub count: Option<u64>,
    pub every: Option<Duration>,
    pub tls: bool,
    pub timeout: Duration,
    pub size: usize,
    pub tag: Option<String>,
    pub round_robin: bool,
    /// Access key and secret.
    pub account: Option<(String, String)>,
    pub batch: u32,
}

fn number<T: std::str::FromStr + PartialOrd + std::fmt::Display>(
    name: &str,
    text: &str,
    least: T,
    most: T,
) -> Result<T, String> {
    match text.parse::<T>() {
        Ok(value) if value >= least && value <= most => Ok(value),
        _ => Err(format!("--{name} {text}: not a number from {least} to {most}")),
    }
}

/// Names go into JSON texts as they are, so that only what RocketMQ allows in a topic is let through.
fn name(option: &str, text: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"%|_-".contains(&byte);
    if text.is_empty() || text.len() > 127 || !text.bytes().all(plain) {
        return Err(format!(
            "--{option} {text}: letters, digits, %, |, _ and - only, 127 at most"
        ));
    }
    Ok(text.to_owned())
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.to_socket_addrs()
        .map_err(|error| format!("--address {text}: {error}"))?
        .next()
        .ok_or_else(|| format!("--address {text}: no address"))
}

pub fn parse(arguments: &[String]) -> Result<Options, String> {
    let mode = match arguments.first().map(String::as_str) {
        Some("produce") => Mode::Produce,
        Some("pull") => Mode::Pull,
        _ => return Err("the first argument is produce or pull".to_owned()),
    };
    let mut given = BTreeMap::new();
    for pair in arguments[1..].chunks(2) {
        let option = pair[0]
            .strip_prefix("--")
            .ok_or_else(|| format!("{}: options begin with --", pair[0]))?;
        let value = pair.get(1).ok_or_else(|| format!("--{option}: a value is missing"))?;
        if given.insert(option, value.as_str()).is_some() {
            return Err(format!("--{option} is given twice"));
        }
    }
    let mut take = |option: &str, default: &str| given.remove(option).unwrap_or(default).to_owned();
    let seconds = |option: &str, text: String| number(option, &text, 0.0, 86_400.0).map(Duration::from_secs_f64);
    let options = Options {
        mode,
        address: address(&take("address", ""))?,
        topic: name("topic", &take("topic", ""))?,
        group: name("group", &take("group", "loadgen"))?,
        connections: number("connections", &take("connections", "1"), 1, 10_000)?,
        outstanding: number("outstanding", &take("outstanding", "1"), 1, 65_536)?,
        queues: number("queues", &take("queues", "8"), 1, 1_000_000)?,
        seconds: seconds("seconds", take("seconds", "5"))?,
        warmup: seconds("warmup", take("warmup", "0"))?,
        count: match take("count", "").as_str() {
            "" => None,
            text => Some(number("count", text, 1, u64::MAX)?),
        },
        every: match take("every", "").as_str() {
            "" => None,
            text => Some(Duration::from_secs_f64(number("every", text, 0.001, 3600.0)?)),
        },
        tls: match take("tls", "no").as_str() {
            "yes" => true,
            "no" => false,
            other => return Err(format!("--tls {other}: yes or no")),
        },
        timeout: seconds("timeout", take("timeout", "30"))?,
        size: number("size", &take("size", "1024"), 0, 16 * 1024 * 1024 - 4096)?,
        tag: match take("tag", "").as_str() {
            "" => None,
            text => Some(name("tag", text)?),
        },
        round_robin: match take("order", "random").as_str() {
            "random" => false,
            "round" => true,
            other => return Err(format!("--order {other}: random or round")),
        },
        account: match (take("access-key", "").as_str(), take("secret-key", "").as_str()) {
            ("", "") => None,
            (key, secret) => Some((name("access-key", key)?, name("secret-key", secret)?)),
        },
        batch: number("batch", &take("batch", "32"), 1, 1024)?,
    };
    match given.keys().next() {
        Some(unknown) => Err(format!("--{unknown}: no such option")),
        None => Ok(options),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Options, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn defaults_and_values() {
        let options =
            parsed("produce --address 127.0.0.1:10911 --topic t --connections 4 --outstanding 64 --warmup 0.5")
                .unwrap();
        assert_eq!(
            (options.mode, options.connections, options.outstanding, options.size),
            (Mode::Produce, 4, 64, 1024)
        );
        assert_eq!(
            (options.warmup, options.seconds, options.count),
            (Duration::from_millis(500), Duration::from_secs(5), None)
        );
    }

    #[test]
    fn a_wrong_option_is_named() {
        for (line, named) in [
            ("send", "produce or pull"),
            ("produce --topic t", "--address"),
            ("produce --address 127.0.0.1:1 --topic a/b", "--topic a/b"),
            ("produce --address 127.0.0.1:1 --topic t --conections 4", "--conections"),
            (
                "produce --address 127.0.0.1:1 --topic t --connections 0",
                "--connections 0",
            ),
            (
                "produce --address 127.0.0.1:1 --topic t --connections",
                "--connections: a value",
            ),
            ("produce --address 127.0.0.1:1 --topic t --seconds -1", "--seconds -1"),
            ("produce --address 127.0.0.1:1 --topic t --every 0", "--every 0"),
            ("produce --address 127.0.0.1:1 --topic t --access-key k", "--secret-key"),
            (
                "pull --address 127.0.0.1:1 --topic t --topic t",
                "--topic is given twice",
            ),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(named), "{line}: {error}");
        }
    }
}

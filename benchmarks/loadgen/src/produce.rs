//! SEND_MESSAGE_V2: an answer with code 0 acknowledges one message, any other is refused and sent again as a new one.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::driver::Load;
use crate::frame::{Answer, SendTemplate};
use crate::options::Options;

pub struct Produce {
    template: SendTemplate,
    queues: u32,
    round_robin: bool,
    sent: u64,
    random: u64,
    began: Instant,
    began_ms: u64,
}

impl Produce {
    pub fn new(options: &Options) -> Self {
        let clock = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("the clock is behind 1970");
        // Process id over nanoseconds: two generators never give one key twice, and a run can be told from the next.
        let run = (u128::from(std::process::id()) << 64) | (clock.as_nanos() & u128::from(u64::MAX));
        Produce {
            template: SendTemplate::new(
                &options.group,
                &options.topic,
                options.tag.as_deref(),
                options.size,
                run,
            )
            .signed(options.account.as_ref()),
            queues: options.queues,
            round_robin: options.round_robin,
            sent: 0,
            random: clock.as_nanos() as u64 | 1,
            began: Instant::now(),
            began_ms: clock.as_millis() as u64,
        }
    }

    fn queue(&mut self) -> u32 {
        if self.round_robin {
            return (self.sent % u64::from(self.queues)) as u32;
        }
        self.random ^= self.random << 13; // xorshift64: any spread will do
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (((self.random >> 32) * u64::from(self.queues)) >> 32) as u32
    }
}

impl Load for Produce {
    fn request(&mut self, _slot: usize, opaque: u32, now: Instant, out: &mut Vec<u8>) {
        let queue = self.queue();
        let born_ms = self.began_ms + now.saturating_duration_since(self.began).as_millis() as u64;
        self.template.append(out, queue, born_ms, self.sent, opaque);
        self.sent += 1;
    }

    fn answer(&mut self, _slot: usize, answer: &Answer, _next: Option<u64>, _body: &[u8]) -> Result<u64, String> {
        Ok(u64::from(answer.code == 0))
    }

    fn below(&self, limit: u64, messages: u64, in_flight: u64) -> bool {
        messages + in_flight < limit
    }
}

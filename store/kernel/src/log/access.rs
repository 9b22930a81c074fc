//! Sends that were permitted to a connection, so that the kernel serves the next ones like them.
//!
//! Python decides who may send to which topic. When it has permitted a send, it grants the connection all sends with the
//! same account to the same topic, until the accounts change. The kernel then checks the signature of each. A send
//! without a grant, or with a wrong signature, goes to Python, which answers it.

use crate::frame::SendHeader;
use crate::meter::Shared;
use crate::signature::KeySchedule;

/// Grants of one connection; one more, and all are forgotten and granted again.
const MOST_GRANTS: usize = 64;

struct Grant {
    topic: Box<[u8]>,
    access_key: Box<[u8]>,
    schedule: KeySchedule,
    /// What the account may send; None: as much as it likes.
    meter: Option<Shared>,
}

#[derive(Default)]
pub(super) struct Access {
    /// The connection comes from an address that is not checked.
    trusted: bool,
    grants: Vec<Grant>,
}

impl Access {
    pub(super) fn trust(&mut self) {
        self.trusted = true;
    }

    pub(super) fn grant(&mut self, topic: &[u8], access_key: &[u8], secret: &[u8], meter: Option<Shared>) {
        if self.find(topic, access_key).is_some() {
            return;
        }
        if self.grants.len() >= MOST_GRANTS {
            self.grants.clear();
        }
        self.grants.push(Grant {
            topic: topic.into(),
            access_key: access_key.into(),
            schedule: KeySchedule::new(secret),
            meter,
        });
    }

    /// The meter of a send that was granted and whose signature is right. None: Python decides. `properties`: without
    /// escapes.
    pub(super) fn admits(&self, header: &SendHeader<'_>, properties: &[u8], body: &[u8]) -> Option<Option<&Shared>> {
        if self.trusted {
            return Some(None);
        }
        let (access_key, signature) = (header.fields.access_key()?, header.fields.signature()?);
        let grant = self.find(header.topic, access_key)?;
        let is_right = grant
            .schedule
            .verifies(header.fields.signed(properties, body), signature);
        is_right.then_some(grant.meter.as_ref())
    }

    fn find(&self, topic: &[u8], access_key: &[u8]) -> Option<&Grant> {
        self.grants
            .iter()
            .find(|grant| *grant.topic == *topic && *grant.access_key == *access_key)
    }
}

//! The faults that a test wants: rules over operations and paths; the first rule that applies decides.

use std::time::Duration;

/// The operations that pass through the door. `Write` includes a store into a mapping, `Sync` the sync of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Open,
    Create,
    Allocate,
    Truncate,
    Read,
    Write,
    Sync,
    Map,
    Rename,
    Remove,
    SyncDir,
    Mkdir,
    SyncFs,
}

pub const OPS: usize = Op::ALL.len();

impl Op {
    pub const ALL: [Op; 13] = [
        Op::Open,
        Op::Create,
        Op::Allocate,
        Op::Truncate,
        Op::Read,
        Op::Write,
        Op::Sync,
        Op::Map,
        Op::Rename,
        Op::Remove,
        Op::SyncDir,
        Op::Mkdir,
        Op::SyncFs,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Op::Open => "open",
            Op::Create => "create",
            Op::Allocate => "allocate",
            Op::Truncate => "truncate",
            Op::Read => "read",
            Op::Write => "write",
            Op::Sync => "sync",
            Op::Map => "map",
            Op::Rename => "rename",
            Op::Remove => "remove",
            Op::SyncDir => "sync_dir",
            Op::Mkdir => "mkdir",
            Op::SyncFs => "sync_fs",
        }
    }

    pub fn from_name(name: &str) -> Option<Op> {
        Op::ALL.into_iter().find(|op| op.name() == name)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Go,
    Fail(i32),
    Tear(usize),
    Lie,
    Slow(Duration),
}

struct Rule {
    op: Op,
    path_part: String,
    verdict: Verdict,
    after: u64,
    times: Option<u64>,
}

#[derive(Default)]
pub struct Rules(Vec<Rule>);

impl Rules {
    pub fn add(&mut self, op: Op, path_part: &str, verdict: Verdict, after: u64, times: Option<u64>) {
        self.0.push(Rule {
            op,
            path_part: path_part.to_owned(),
            verdict,
            after,
            times,
        });
    }

    /// The verdict on one call. Every rule that matches counts it, so that `after` means the same calls for two rules.
    pub fn judge(&mut self, op: Op, path: &str) -> Verdict {
        let mut verdict = Verdict::Go;
        for rule in self
            .0
            .iter_mut()
            .filter(|rule| rule.op == op && path.contains(&rule.path_part))
        {
            if rule.after > 0 {
                rule.after -= 1;
            } else if verdict == Verdict::Go && rule.times != Some(0) {
                rule.times = rule.times.map(|times| times - 1);
                verdict = rule.verdict;
            }
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_waits_then_fails_a_number_of_times() {
        let mut rules = Rules::default();
        rules.add(Op::Write, "log", Verdict::Fail(5), 2, Some(1));
        let judged: Vec<Verdict> = (0..4).map(|_| rules.judge(Op::Write, "/a/log/0")).collect();
        assert_eq!(judged, [Verdict::Go, Verdict::Go, Verdict::Fail(5), Verdict::Go]);
        assert_eq!(rules.judge(Op::Sync, "/a/log/0"), Verdict::Go);
    }

    #[test]
    fn a_rule_that_waits_lets_the_next_one_count() {
        let mut rules = Rules::default();
        rules.add(Op::Write, "log", Verdict::Fail(1), 2, Some(1));
        rules.add(Op::Write, "log", Verdict::Fail(2), 1, Some(1));
        let judged: Vec<Verdict> = (0..4).map(|_| rules.judge(Op::Write, "/a/log/0")).collect();
        assert_eq!(judged, [Verdict::Go, Verdict::Fail(2), Verdict::Fail(1), Verdict::Go]);
    }

    #[test]
    fn names_are_unique() {
        for op in Op::ALL {
            assert_eq!(Op::from_name(op.name()), Some(op));
            assert_eq!(Op::ALL[op as usize], op);
        }
    }
}

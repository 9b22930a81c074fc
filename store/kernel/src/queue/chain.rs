//! Chooses which records of one queue belong together when some of them claim a wrong queue offset.
//!
//! No CRC covers topic, queue id and queue offset of a plain record. A damaged one claims a place that is taken, a
//! place far ahead, or a place in another queue. The sound records of a queue have rising offsets, and each offset that
//! is missing between two of them belonged to a record that took up bytes of the log between these two. So the records
//! that a rebuild cannot place at once are claims, in the order of the log, and the best chain of them is chosen:
//!
//! - offsets rise along the chain, and each gap has room in the log;
//! - each claim that is kept counts `WORTH`, each offset that is missing without a known reason costs one (a claim that
//!   is skipped in the gap is a reason: its record may be the missing one);
//! - a run of `RUN` consecutive offsets is proof: the chain ends with it, whatever it skips.
//!
//! Offset 0 may begin a queue again: its topic was removed and created again, and the log has the records of both.

use super::unit::Unit;
use crate::record::SMALLEST;

/// This many consecutive offsets are no accident.
pub const RUN: usize = 4;
const WORTH: i64 = 8;
/// The worth of a damaged record: a sound one with the same offset replaces it.
const LOST_WORTH: i64 = 4;

/// A record's claim to a place in a queue.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// The unit of the record. `pos` and `size` are where the record lies.
    pub unit: Unit,
    pub offset: i64,
    pub store_timestamp: i64,
    /// The record itself is damaged: its place gets a placeholder.
    pub lost: bool,
}

/// What is known before the claims.
pub struct Front<'a> {
    /// The queue's next offset. None: the queue has no unit.
    pub next: Option<i64>,
    /// End of the last record that has a unit.
    pub end_pos: i64,
    /// The cost of beginning a queue without units with this claim; None: the claim is impossible.
    pub first: &'a dyn Fn(&Claim) -> Option<i64>,
    /// Whether this many records may lie in the damaged bytes of the log between two positions.
    pub lacks: &'a dyn Fn(i64, i64, u64) -> bool,
}

/// The accepted claims, by number, and whether the queue begins again with them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Choice {
    pub again: bool,
    pub chain: Vec<usize>,
}

/// The best way to a claim.
#[derive(Clone, Copy)]
struct Way {
    score: i64,
    before: Option<usize>,
}

/// The number of claims at the end that have consecutive offsets.
pub fn run_length(claims: &[Claim]) -> usize {
    let pairs = claims.windows(2).rev();
    let more = pairs.take_while(|pair| pair[0].offset.checked_add(1) == Some(pair[1].offset));
    more.count() + usize::from(!claims.is_empty())
}

/// The chain that ends with the last `RUN` claims, which have consecutive offsets.
pub fn choose_proven(claims: &[Claim], front: &Front<'_>) -> Choice {
    let run = claims.len() - RUN;
    let target = claims[run].offset;
    let to_end = |mut chain: Vec<usize>, again| {
        chain.extend(run..claims.len());
        Choice { again, chain }
    };
    if begins_again(claims, front) {
        return to_end((0..run).collect(), true);
    }
    if front.next.is_none_or(|next| target >= next) {
        let ways = ways(&claims[..run], front, false);
        // Without a claim in between, a known queue continues at `target` after one gap.
        let least = front.next.map_or(0, |next| next - target);
        let best = best(&ways, |at| {
            let gap = target - claims[at].offset - 1;
            let cost = || front.cost(claims[at].unit.end(), &claims[run], gap).unwrap_or(gap);
            (gap >= 0).then(|| less_skipped(cost(), run - at - 1))
        });
        return to_end(
            best.filter(|best| best.1 > least)
                .map_or(vec![], |best| path(&ways, best.0)),
            false,
        );
    }
    let ways = ways(claims, front, true);
    match ways[claims.len() - 1] {
        Some(_) => Choice {
            again: true,
            chain: path(&ways, claims.len() - 1),
        },
        None => Choice::default(),
    }
}

/// The chain when no more claims will come. `alone`: whether a single offset 0 at the end begins the queue again.
pub fn choose_last(claims: &[Claim], front: &Front<'_>, alone: bool) -> Choice {
    if begins_again(claims, front) && (claims.len() > 1 || alone) {
        let chain = (0..claims.len()).collect();
        return Choice { again: true, chain };
    }
    for again in [false, true] {
        let ways = ways(claims, front, again);
        if let Some((at, _)) = best(&ways, |_| Some(0)).filter(|best| best.1 > 0) {
            let chain = path(&ways, at);
            if !again || chain.len() > 1 {
                return Choice { again, chain };
            }
        }
    }
    Choice::default()
}

/// All claims together are a new life of the queue, without any damage.
fn begins_again(claims: &[Claim], front: &Front<'_>) -> bool {
    front.next.is_some_and(|next| next > 0)
        && claims.first().is_some_and(|claim| claim.offset == 0 && !claim.lost)
        && run_length(claims) == claims.len()
}

impl Front<'_> {
    /// The cost of a gap of this many offsets before `to`; None: the log has no room for it.
    fn cost(&self, from_pos: i64, to: &Claim, gap: i64) -> Option<i64> {
        if gap == 0 || (self.lacks)(from_pos, to.unit.pos, gap as u64) {
            return Some(0);
        }
        let room = (to.unit.pos - from_pos.max(0)) / SMALLEST as i64;
        (gap <= room).then_some(gap)
    }

    /// The cost if `claim` is the first one of a chain.
    fn begin(&self, claim: &Claim, again: bool) -> Option<i64> {
        match self.next {
            _ if again => (claim.offset == 0 && !claim.lost).then_some(0),
            None => (self.first)(claim),
            Some(next) if claim.offset >= next => self.cost(self.end_pos, claim, claim.offset - next),
            Some(_) => None,
        }
    }
}

fn ways(claims: &[Claim], front: &Front<'_>, again: bool) -> Vec<Option<Way>> {
    let mut ways: Vec<Option<Way>> = vec![];
    for (i, claim) in claims.iter().enumerate() {
        let worth = if claim.lost { LOST_WORTH } else { WORTH };
        let mut way = front.begin(claim, again).map(|cost| Way {
            score: worth - less_skipped(cost, i),
            before: None,
        });
        for (j, before) in ways.iter().enumerate() {
            let Some(before) = before else { continue };
            let gap = claim.offset - claims[j].offset - 1;
            if gap < 0 {
                continue;
            }
            let Some(cost) = front.cost(claims[j].unit.end(), claim, gap) else {
                continue;
            };
            let score = before.score + worth - less_skipped(cost, i - j - 1);
            // Of two records with the same offset the first one is chosen; of two beginnings the later one.
            if way.is_none_or(|way| score > way.score || again && score == way.score && way.before.is_some()) {
                way = Some(Way { score, before: Some(j) });
            }
        }
        ways.push(way);
    }
    ways
}

/// The cost of a gap in which so many claims are skipped.
fn less_skipped(cost: i64, skipped: usize) -> i64 {
    (cost - skipped as i64).max(0)
}

/// The end of the best chain, and its score less the cost of continuing from there.
fn best(ways: &[Option<Way>], cost: impl Fn(usize) -> Option<i64>) -> Option<(usize, i64)> {
    let mut best: Option<(usize, i64)> = None;
    for (at, way) in ways.iter().enumerate() {
        if let (Some(way), Some(cost)) = (way, cost(at)) {
            let score = way.score - cost;
            if best.is_none_or(|best| score > best.1) {
                best = Some((at, score));
            }
        }
    }
    best
}

fn path(ways: &[Option<Way>], end: usize) -> Vec<usize> {
    let mut path = vec![];
    let mut at = Some(end);
    while let Some(i) = at {
        path.push(i);
        at = ways[i].and_then(|way| way.before);
    }
    path.reverse();
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: [usize; 0] = [];

    /// Claims to these offsets, each record of 100 bytes at the given hundred.
    fn claims(of: &[(i64, i64)]) -> Vec<Claim> {
        let claim = |&(hundred, offset)| Claim {
            unit: Unit {
                pos: hundred * 100,
                size: 100,
                tags_code: 0,
            },
            offset,
            store_timestamp: 0,
            lost: false,
        };
        of.iter().map(claim).collect()
    }

    /// Claims with room for two records before each.
    fn row(offsets: &[i64]) -> Vec<Claim> {
        let places = (10..).step_by(3);
        claims(&places.zip(offsets.iter().copied()).collect::<Vec<_>>())
    }

    fn with<R>(next: Option<i64>, lost: bool, act: impl FnOnce(&Front<'_>) -> R) -> R {
        act(&Front {
            next,
            end_pos: 500,
            first: &|claim| (claim.offset * SMALLEST as i64 <= claim.unit.pos).then_some(0),
            lacks: &|_, _, _| lost,
        })
    }

    fn last(next: i64, offsets: &[i64]) -> Vec<i64> {
        let claims = row(offsets);
        let choice = with(Some(next), false, |front| choose_last(&claims, front, false));
        assert!(!choice.again);
        choice.chain.iter().map(|&i| claims[i].offset).collect()
    }

    fn proven(next: Option<i64>, offsets: &[i64]) -> (bool, Vec<i64>) {
        let claims = row(offsets);
        let choice = with(next, false, |front| choose_proven(&claims, front));
        (choice.again, choice.chain.iter().map(|&i| claims[i].offset).collect())
    }

    #[test]
    fn a_far_jump_at_the_end_is_damage_and_a_near_one_is_a_gap() {
        assert!(last(4, &[1 << 47]).is_empty());
        assert!(last(4, &[12]).is_empty(), "a gap of eight records needs a proof");
        assert_eq!(last(4, &[5]), [5]);
        assert_eq!(last(4, &[7]), [7]);
        let claims = row(&[9]);
        assert_eq!(with(Some(4), true, |f| choose_last(&claims, f, false)).chain, [0]);
    }

    #[test]
    fn a_gap_needs_room_in_the_log() {
        let near = claims(&[(6, 6)]);
        assert_eq!(
            with(Some(4), false, |f| choose_last(&near, f, false)).chain,
            NOTHING,
            "100 bytes are one record"
        );
        let near = claims(&[(7, 6)]);
        assert_eq!(with(Some(4), false, |f| choose_last(&near, f, false)).chain, [0]);
    }

    #[test]
    fn a_record_that_the_next_ones_contradict_is_dropped() {
        assert_eq!(last(4, &[6, 4, 5]), [4, 5]);
        assert_eq!(last(4, &[1 << 40, 4]), [4]);
        assert_eq!(
            last(4, &[14, 30, 4]),
            [4],
            "two damaged ones do not outweigh the place that comes next"
        );
        assert_eq!(proven(Some(4), &[6, 4, 5, 6, 7]), (false, vec![4, 5, 6, 7]));
        assert_eq!(proven(Some(4), &[5, 9, 6, 7, 8, 9]), (false, vec![5, 6, 7, 8, 9]));
    }

    #[test]
    fn lost_records_leave_gaps() {
        assert_eq!(last(4, &[5, 7, 9]), [5, 7, 9]);
        assert_eq!(proven(Some(4), &[6, 8, 9, 10, 11]), (false, vec![6, 8, 9, 10, 11]));
        assert_eq!(
            proven(Some(4), &[900, 901, 902, 903]),
            (false, vec![900, 901, 902, 903]),
            "four are proof"
        );
    }

    #[test]
    fn of_two_records_with_one_offset_the_first_is_taken() {
        let claims = row(&[5, 5, 6]);
        assert_eq!(with(Some(5), false, |f| choose_last(&claims, f, false)).chain, [0, 2]);
    }

    #[test]
    fn a_record_that_is_skipped_may_be_the_missing_one() {
        assert_eq!(
            with(Some(4), false, |f| choose_last(&row(&[5, 5, 6]), f, false)).chain,
            [1, 2]
        );
        // 9 claims 11, and 11 is in another queue.
        assert_eq!(last(9, &[11, 10, 12, 13]), [10, 12, 13]);
        assert_eq!(
            proven(Some(9), &[11, 10, 12, 13, 14, 15]),
            (false, vec![10, 12, 13, 14, 15])
        );
    }

    #[test]
    fn a_sound_record_is_taken_before_a_damaged_one() {
        let mut claims = row(&[5, 5, 6]);
        claims[0].lost = true;
        assert_eq!(with(Some(4), false, |f| choose_last(&claims, f, false)).chain, [1, 2]);
    }

    #[test]
    fn a_queue_without_units_begins_where_its_records_agree() {
        assert_eq!(
            proven(None, &[0, 7000, 7001, 7002, 7003]),
            (false, vec![7000, 7001, 7002, 7003])
        );
        assert_eq!(proven(None, &[3, 5, 6, 7, 8]), (false, vec![3, 5, 6, 7, 8]));
        let far = row(&[1 << 40]);
        assert_eq!(with(None, false, |f| choose_last(&far, f, false)).chain, NOTHING);
    }

    #[test]
    fn offset_0_begins_a_queue_again_if_the_next_offsets_follow() {
        assert_eq!(proven(Some(58), &[0, 1, 2, 3]), (true, vec![0, 1, 2, 3]));
        assert_eq!(proven(Some(58), &[0, 2, 3, 4, 5]), (true, vec![0, 2, 3, 4, 5]));
        assert_eq!(proven(Some(58), &[0, 58, 59, 60, 61]), (false, vec![58, 59, 60, 61]));
        assert_eq!(proven(Some(2), &[0, 2, 3, 4, 5]), (false, vec![2, 3, 4, 5]));
        assert!(proven(Some(58), &[0, 0, 1, 2, 3]).0);
        assert_eq!(
            proven(Some(58), &[0, 50, 51, 52, 53]),
            (false, vec![]),
            "offsets given out twice"
        );
    }

    #[test]
    fn two_records_at_the_end_begin_a_new_life_and_one_may() {
        let two = row(&[0, 1]);
        assert!(with(Some(58), false, |f| choose_last(&two, f, false)).again);
        let one = row(&[0]);
        assert!(with(Some(58), false, |f| choose_last(&one, f, true)).again);
        assert_eq!(
            with(Some(58), false, |f| choose_last(&one, f, false)),
            Choice::default()
        );
    }
}

//! Auditors and witnesses that fall behind. Each of them is expected to cosign what is published within a time that the operator
//! sets; one that has not is an incident, of no tenant, for as long as it lasts. What is done about it is not decided here.

use crate::incidents::{Cosigner, IncidentMove};
use crate::log::{IncidentId, Shared, lock};
use crate::queue::{Queued, Reply};
use crate::sequence::Draft;
use crate::witness::{Lag, WitnessHealth, WitnessPolicy};
use crate::{fault::LogFault, keys::random};
use audit_provenance::{Body, Containment, CosignerLag, IncidentStage};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// How often it is looked who has fallen behind: the limit is a number of seconds.
const LOOK: Duration = Duration::from_millis(500);
/// Publications that are told apart: those of a day, at one in a second.
const PUBLICATIONS_MAX: usize = 86_400;
/// Publications that lie closer together count as one, of the time of the first.
const APART_US: u64 = 1_000_000;

/// When what was published, as far as somebody has not cosigned it.
#[derive(Debug, Default)]
pub(crate) struct Publications {
    /// Size of the tree, and when the first entry beyond the item before was published.
    beyond: VecDeque<(u64, u64)>,
    newest: u64,
}

impl Publications {
    /// Notes a checkpoint. Sizes grow.
    pub(crate) fn note(&mut self, size: u64, now_us: u64) {
        if size <= self.newest {
            return;
        }
        self.newest = size;
        match self.beyond.back_mut() {
            // The earlier time stands for both: nobody seems to be less behind than he is.
            Some((last, since_us)) if now_us < since_us.saturating_add(APART_US) => *last = size,
            _ => self.beyond.push_back((size, now_us)),
        }
        if self.beyond.len() > PUBLICATIONS_MAX
            && let Some((size, _)) = self.beyond.remove(1)
            && let Some((first, _)) = self.beyond.front_mut()
        {
            *first = size;
        }
    }

    /// What everybody has cosigned is not asked about any more.
    pub(crate) fn forget(&mut self, cosigned: u64) {
        let covered = self.beyond.partition_point(|(size, _)| *size <= cosigned);
        self.beyond.drain(..covered);
    }

    /// How far behind somebody is who has cosigned so many entries.
    pub(crate) fn lag(&self, cosigned: u64, now_us: u64) -> Lag {
        let first = self.beyond.partition_point(|(size, _)| *size <= cosigned);
        let behind_us = self.beyond.get(first).map_or(0, |(_, since_us)| now_us.saturating_sub(*since_us));
        Lag { entries: self.newest.saturating_sub(cosigned), behind_us }
    }
}

/// What is to be written about those who have fallen behind, and about those who have caught up.
#[derive(Debug, PartialEq, Eq)]
enum Word {
    Behind(CosignerLag),
    CaughtUp(IncidentId),
}

/// `lagging`: of whom the log says so already. One lag has one incident, however long it lasts and however often the gateway is
/// started meanwhile. One that is not configured any more is not waited for.
fn words(
    cosigners: &[WitnessHealth],
    lagging: &[(Cosigner, IncidentId)],
    limit_us: u64,
    mut new_id: impl FnMut() -> Result<[u8; 16], LogFault>,
) -> Result<Vec<Word>, LogFault> {
    let mut words = Vec::new();
    let is = |health: &WitnessHealth, (role, name): &Cosigner| health.role == *role && *health.name == **name;
    for (cosigner, incident) in lagging {
        let health = cosigners.iter().find(|health| is(health, cosigner));
        if health.is_none_or(|health| health.lag.behind_us <= limit_us && health.cosigned > 0) {
            words.push(Word::CaughtUp(*incident));
        }
    }
    for health in cosigners {
        let Lag { entries, behind_us } = health.lag;
        if behind_us > limit_us && !lagging.iter().any(|(cosigner, _)| is(health, cosigner)) {
            words.push(Word::Behind(CosignerLag {
                incident: new_id()?,
                role: health.role,
                cosigner: health.name.to_string(),
                cosigned: health.cosigned,
                published: health.cosigned.saturating_add(entries),
                behind_us,
                limit_us,
            }));
        }
    }
    Ok(words)
}

impl Word {
    fn body(self) -> Body {
        match self {
            Self::Behind(lag) => Body::Lag(lag),
            Self::CaughtUp(incident) => IncidentMove {
                incident,
                to: IncidentStage::Contained,
                actor: None,
                second: None,
                evidence: None,
                action: Containment::None,
                notice: None,
            }
            .body(),
        }
    }
}

/// Starts the thread that looks who has fallen behind, where somebody is to be looked at. It ends when the log is closed.
pub(crate) fn start(shared: &Arc<Shared>, policy: &WitnessPolicy) -> io::Result<Option<JoinHandle<()>>> {
    let Some(limit) = policy.lag_max.filter(|_| !policy.witnesses.is_empty()) else { return Ok(None) };
    let limit_us = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
    let shared = Arc::clone(shared);
    std::thread::Builder::new().name("audit-lag".into()).spawn(move || run(&shared, limit_us)).map(Some)
}

fn run(shared: &Shared, limit_us: u64) {
    while let Some(cosigners) = shared.board.lags_after(LOOK, &*shared.clock) {
        let lagging = lock(&shared.incidents).lagging();
        // Without random bytes the sequencer stops the log: that is not done twice.
        let Ok(words) = words(&cosigners, &lagging, limit_us, || random().map(|id| *id)) else { return };
        for word in words {
            say(&word);
            let (reply, placed) = oneshot::channel();
            let Ok(draft) = Draft::untenanted(word.body()) else { return };
            if shared.queue.push_owed(vec![Queued { draft, reply: Reply::Sealed(reply) }]).is_err() {
                return;
            }
            // INVARIANT: the fold has it when this is answered, so it is not written a second time. Persons may have closed an
            // incident in between: then there is nothing to say any more.
            let _placed = placed.blocking_recv();
        }
    }
}

fn say(word: &Word) {
    match word {
        Word::Behind(lag) => {
            let (incident, class) = (IncidentId(lag.incident), lag.class_name());
            let (cosigner, behind_ms) = (&lag.cosigner, lag.behind_us / 1_000);
            tracing::error!(%incident, class, cosigner, behind_ms, "a cosigner of the log has fallen behind");
        }
        Word::CaughtUp(incident) => tracing::info!(%incident, "a cosigner of the log has caught up"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use audit_provenance::CosignerRole;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn a_lag_counts_from_the_first_publication_that_is_not_cosigned() {
        let mut publications = Publications::default();
        assert_eq!(publications.lag(0, 9 * SECOND), Lag::default(), "nothing is published");
        for (size, second) in [(5, 10), (9, 20), (9, 25), (12, 30)] {
            publications.note(size, second * SECOND);
        }
        let lag = |publications: &Publications, cosigned, second| {
            let Lag { entries, behind_us } = publications.lag(cosigned, second * SECOND);
            (entries, behind_us / SECOND)
        };
        assert_eq!(lag(&publications, 0, 40), (12, 30));
        assert_eq!(lag(&publications, 5, 40), (7, 20));
        // One that has cosigned a part of what was published together waits for the rest since then.
        assert_eq!(lag(&publications, 7, 40), (5, 20));
        assert_eq!(lag(&publications, 9, 40), (3, 10));
        assert_eq!(lag(&publications, 12, 4_000), (0, 0));
        assert_eq!(lag(&publications, 99, 4_000), (0, 0));
        publications.forget(5);
        assert_eq!(lag(&publications, 5, 40), (7, 20));
        assert_eq!(publications.beyond.len(), 2);
    }

    #[test]
    fn many_publications_take_bounded_memory_and_make_no_lag_shorter() {
        let mut publications = Publications::default();
        for number in 0..3 * PUBLICATIONS_MAX as u64 {
            publications.note(number + 1, number * APART_US);
        }
        assert_eq!(publications.beyond.len(), PUBLICATIONS_MAX);
        let now_us = 3 * PUBLICATIONS_MAX as u64 * APART_US;
        for cosigned in [0, 1, 7, PUBLICATIONS_MAX as u64, 3 * PUBLICATIONS_MAX as u64 - 1] {
            assert!(publications.lag(cosigned, now_us).behind_us >= now_us - cosigned * APART_US, "{cosigned}");
        }
        // Those that come at once are one, since the first of them.
        let mut at_once = Publications::default();
        for number in 0..100 {
            at_once.note(number + 1, number);
        }
        assert_eq!((at_once.beyond.len(), at_once.lag(50, 200).behind_us), (1, 200));
    }

    fn health(name: &str, role: CosignerRole, cosigned: u64, behind_us: u64) -> WitnessHealth {
        let lag = Lag { entries: u64::from(behind_us > 0), behind_us };
        WitnessHealth { name: name.into(), role, cosigned, away: false, alarm: None, lag }
    }

    #[test]
    fn a_lag_is_one_incident_from_its_beginning_to_its_end() {
        let (auditor, witness) = (CosignerRole::Auditor, CosignerRole::Witness);
        let said = |cosigners: &[WitnessHealth], lagging: &[(Cosigner, IncidentId)]| {
            let mut next = 0;
            let new_id = || {
                next += 1;
                Ok([next; 16])
            };
            words(cosigners, lagging, 10, new_id).unwrap()
        };
        assert_eq!(said(&[health("a", auditor, 4, 10), health("w", witness, 5, 0)], &[]), [], "as long as is allowed");
        let behind = [health("a", auditor, 4, 11), health("w", witness, 5, 99)];
        let words = said(&behind, &[]);
        let [Word::Behind(first), Word::Behind(second)] = &words[..] else { panic!("{words:?}") };
        assert_eq!((first.role, &*first.cosigner, first.cosigned, first.published), (auditor, "a", 4, 5));
        assert_eq!((first.behind_us, first.limit_us, second.class_name()), (11, 10, "witness_lag"));
        let both = [((auditor, "a".to_owned()), IncidentId([1; 16])), ((witness, "w".to_owned()), IncidentId([2; 16]))];
        assert_eq!(said(&behind, &both), [], "it is said once");
        // Of the same name and another role, it is somebody else.
        assert_eq!(said(&[health("w", auditor, 5, 99)], &both[1..]).len(), 2);
        let caught_up = [health("a", auditor, 5, 0), health("w", witness, 5, 99)];
        assert_eq!(said(&caught_up, &both), [Word::CaughtUp(IncidentId([1; 16]))]);
        assert_eq!(said(&caught_up, &both[1..]), [], "the other goes on");
        // After a start nobody has cosigned yet, nor had the time to fall behind: that is no end of a lag.
        let begun = [health("a", auditor, 0, 3), health("w", witness, 0, 3)];
        assert_eq!(said(&begun, &both), []);
        assert_eq!(said(&begun[..1], &both).len(), 1, "one that is not configured any more");
    }
}

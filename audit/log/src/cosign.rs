//! Cosignatures of published checkpoints: asked for in the background, one thread for each witness, behind the publisher
//! and never in the way of a commit. A round is one checkpoint that all witnesses are asked about.

use crate::clock::Clock;
use crate::lag::Publications;
use crate::log::{Shared, lock};
use crate::publish::Published;
use crate::receipt::Tiles;
use crate::witness::{Asked, Lag, WITNESSES_MAX, Witness, WitnessHealth, WitnessPolicy, ask};
use audit_provenance::CosignerRole;
use audit_tlog::{Checkpoint, Hash, TiledTree};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

/// A round takes at least this long: witnesses of a busy log are not asked about each of its checkpoints.
const ROUND_US: u64 = 1_000_000;
/// A round that has not found its quorum after this long is given up for a newer checkpoint.
const ROUND_US_MAX: u64 = 10_000_000;
/// The pause after a failure: the first, and the longest after several.
const PAUSE_US: u64 = 250_000;
const PAUSE_US_MAX: u64 = 60_000_000;
/// How often a thread that waits for a time looks at the clock.
const LOOK: Duration = Duration::from_millis(100);

/// A checkpoint with cosignatures, on its way to the publisher.
#[derive(Debug, Clone)]
pub(crate) struct Cosigned {
    /// The log's note, and a line of each witness.
    pub(crate) published: Published,
    /// Whether these are as many as the policy asks for.
    pub(crate) quorum: bool,
}

/// Where the threads see what is to be cosigned, and leave what was.
pub(crate) struct Board {
    state: Mutex<State>,
    changed: Condvar,
    quorum: usize,
    lag_max_us: Option<u64>,
}

struct State {
    newest: Option<Arc<Published>>,
    publications: Publications,
    round: Option<Round>,
    /// Size of the largest checkpoint that found its quorum.
    witnessed: u64,
    health: Vec<WitnessHealth>,
    closed: bool,
}

struct Round {
    published: Arc<Published>,
    since_us: u64,
    /// Signature lines, by the witness's number.
    lines: BTreeMap<usize, String>,
}

impl State {
    /// The checkpoint to ask about now; the newest one when the last round is over.
    fn target(&mut self, now_us: u64, quorum: usize) -> Option<Arc<Published>> {
        let newest = self.newest.as_ref()?;
        let over = self.round.as_ref().is_none_or(|round| {
            let age_us = now_us.saturating_sub(round.since_us);
            let done = round.lines.len() >= quorum || age_us >= ROUND_US_MAX;
            newest.size > round.published.size && age_us >= ROUND_US && done
        });
        if over {
            self.round = Some(Round { published: Arc::clone(newest), since_us: now_us, lines: BTreeMap::new() });
        }
        self.round.as_ref().map(|round| Arc::clone(&round.published))
    }

    fn with_lags(&self, now_us: u64) -> Vec<WitnessHealth> {
        let with_lag = |health: &WitnessHealth| {
            let lag = self.publications.lag(health.cosigned, now_us);
            WitnessHealth { lag, ..health.clone() }
        };
        self.health.iter().map(with_lag).collect()
    }

    fn give_up(&mut self, size: u64) {
        if self.round.as_ref().is_some_and(|round| round.published.size == size) {
            self.round = None;
        }
    }

    /// Adds a cosignature to its round; what came too late is dropped.
    fn cosigned(&mut self, witness: usize, size: u64, line: String, quorum: usize) -> Option<Cosigned> {
        if let Some(health) = self.health.get_mut(witness) {
            health.cosigned = health.cosigned.max(size);
            health.away = false;
        }
        self.publications.forget(self.health.iter().map(|health| health.cosigned).min().unwrap_or(size));
        let round = self.round.as_mut().filter(|round| round.published.size == size)?;
        round.lines.insert(witness, line);
        let note = round.lines.values().fold(round.published.note.clone(), |note, line| note + line);
        let quorum = round.lines.len() >= quorum;
        if quorum {
            self.witnessed = self.witnessed.max(size);
        }
        Some(Cosigned { published: Published { note, ..Published::clone(&round.published) }, quorum })
    }
}

impl Board {
    pub(crate) fn new(policy: &WitnessPolicy) -> Self {
        let health = |witness: &Witness| WitnessHealth {
            name: Arc::from(witness.key.name()),
            role: witness.role,
            cosigned: 0,
            away: true,
            alarm: None,
            lag: Lag::default(),
        };
        let health = policy.witnesses.iter().take(WITNESSES_MAX).map(health).collect();
        let publications = Publications::default();
        let state = State { newest: None, publications, round: None, witnessed: 0, health, closed: false };
        let lag_max_us = policy.lag_max.map(|longest| u64::try_from(longest.as_micros()).unwrap_or(u64::MAX));
        Self { state: Mutex::new(state), changed: Condvar::new(), quorum: policy.quorum.max(1), lag_max_us }
    }

    /// Tells of a newer checkpoint. It has the log's signature alone.
    pub(crate) fn publish(&self, published: Arc<Published>, now_us: u64) {
        let mut state = lock(&self.state);
        state.publications.note(published.size, now_us);
        state.newest = Some(published);
        drop(state);
        self.changed.notify_all();
    }

    pub(crate) fn close(&self) {
        lock(&self.state).closed = true;
        self.changed.notify_all();
    }

    /// Size under the largest witnessed checkpoint, and how the witnesses do.
    pub(crate) fn health(&self, now_us: u64) -> (u64, Vec<WitnessHealth>) {
        let state = lock(&self.state);
        (state.witnessed, state.with_lags(now_us))
    }

    /// Whether an auditor has fallen behind by more than is allowed; `None` when nobody set how much that is.
    pub(crate) fn auditor_lags(&self, now_us: u64) -> Option<bool> {
        let lag_max_us = self.lag_max_us?;
        let state = lock(&self.state);
        let lags = |health: &WitnessHealth| state.publications.lag(health.cosigned, now_us).behind_us > lag_max_us;
        Some(state.health.iter().any(|health| health.role == CosignerRole::Auditor && lags(health)))
    }

    /// How far each cosigner is behind, after a pause; `None` when the log is closed.
    pub(crate) fn lags_after(&self, pause: Duration, clock: &dyn Clock) -> Option<Vec<WitnessHealth>> {
        let open = |state: &mut State| !state.closed;
        let waited = self.changed.wait_timeout_while(lock(&self.state), pause, open);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (!state.closed).then(|| state.with_lags(clock.mono_us()))
    }

    /// Waits for a checkpoint that is larger than `done`, and until `pause_until_us`; `None` when the log is closed.
    fn next(&self, done: Option<u64>, pause_until_us: u64, clock: &dyn Clock) -> Option<Arc<Published>> {
        let mut state = lock(&self.state);
        loop {
            if state.closed {
                return None;
            }
            let now_us = clock.mono_us();
            if now_us >= pause_until_us
                && let Some(target) = state.target(now_us, self.quorum)
                && done.is_none_or(|done| target.size > done)
            {
                return Some(target);
            }
            let newer = state.newest.as_ref().is_some_and(|newest| done.is_none_or(|done| newest.size > done));
            state = if newer {
                self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0
            } else {
                self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
            };
        }
    }

    /// Ends the round of this checkpoint: the next one is about the newest.
    fn give_up(&self, target: &Published) {
        lock(&self.state).give_up(target.size);
    }

    /// Notes that a witness did not cosign. The first alarm stays.
    fn failed(&self, witness: usize, alarm: Option<String>) {
        if let Some(health) = lock(&self.state).health.get_mut(witness) {
            health.away = true;
            if let Some(alarm) = alarm {
                health.alarm.get_or_insert(Arc::from(alarm));
            }
        }
    }
}

/// Starts a thread for each witness. They end by themselves once the log is closed: nobody waits for a witness.
pub(crate) fn start(shared: &Arc<Shared>, policy: &WitnessPolicy, clock: &Arc<dyn Clock>) -> io::Result<()> {
    for (number, witness) in policy.witnesses.iter().take(WITNESSES_MAX).cloned().enumerate() {
        let (board, clock, weak) = (Arc::clone(&shared.board), Arc::clone(clock), Arc::downgrade(shared));
        std::thread::Builder::new()
            .name("audit-witness".into())
            .spawn(move || run(&weak, &board, &*clock, number, &witness))?;
    }
    Ok(())
}

/// One witness: asks about each round's checkpoint, and pauses for longer and longer when that leads to nothing.
fn run(shared: &Weak<Shared>, board: &Board, clock: &dyn Clock, number: usize, witness: &Witness) {
    let (mut done, mut known, mut pause_us, mut pause_until_us) = (None, None, 0, 0);
    while let Some(target) = board.next(done, pause_until_us, clock) {
        let checkpoint = Checkpoint { origin: origin(&target.note), size: target.size, root: target.root };
        // The log is not held while a witness is waited for: its folder is free as soon as it is closed.
        let prove = |old_size| prove(shared, &target, old_size);
        let asked = ask(witness, &checkpoint, &target.note, &mut known, &prove);
        let name = witness.key.name();
        let alarm = match asked {
            Asked::Cosigned(cosignature) => {
                (done, pause_us) = (Some(target.size), 0);
                let cosigned = lock(&board.state).cosigned(number, target.size, cosignature.line, board.quorum);
                if let (Some(cosigned), Some(shared)) = (cosigned, shared.upgrade()) {
                    shared.put_cosigned(cosigned);
                }
                continue;
            }
            Asked::Ahead(theirs) => {
                Some(format!("it says that it has seen {theirs} entries, and there are {}", target.size))
            }
            Asked::Forked(size) => Some(format!("it has seen another tree of {size} entries than this log's")),
            Asked::Refused(reason) => Some(format!("it has looked into the log and does not cosign: {reason}")),
            // A round waits for those who were away, longer than its partial tiles are kept. Another one begins now.
            Asked::NoProof(reason) => {
                tracing::warn!(witness = name, reason, "a witness is asked about a newer checkpoint");
                board.give_up(&target);
                pause_us = (pause_us * 2).clamp(PAUSE_US, ROUND_US);
                pause_until_us = clock.mono_us().saturating_add(pause_us);
                continue;
            }
            Asked::Failed(reason) => {
                tracing::warn!(witness = name, reason, "a witness has not cosigned");
                None
            }
        };
        pause_us = if alarm.is_some() { PAUSE_US_MAX } else { (pause_us * 2).clamp(PAUSE_US, PAUSE_US_MAX) };
        if let Some(alarm) = &alarm {
            tracing::error!(witness = name, alarm, "a witness has an objection to this log");
        }
        board.failed(number, alarm);
        pause_until_us = clock.mono_us().saturating_add(pause_us);
    }
}

/// The first line of a note that this log has signed.
fn origin(note: &str) -> String {
    audit_tlog::origin_of(note).unwrap_or_default().to_owned()
}

fn prove(shared: &Weak<Shared>, target: &Published, old_size: u64) -> Result<Vec<Hash>, String> {
    let shared = shared.upgrade().ok_or("the log is closed")?;
    let files = Tiles(&*shared.storage);
    let tree = TiledTree::new(target.size, target.root, &files);
    tree.prove_consistency(old_size).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(witnesses: usize) -> State {
        let (role, lag) = (CosignerRole::Witness, Lag::default());
        let health = WitnessHealth { name: "w".into(), role, cosigned: 0, away: true, alarm: None, lag };
        let (publications, health) = (Publications::default(), vec![health; witnesses]);
        State { newest: None, publications, round: None, witnessed: 0, health, closed: false }
    }

    fn published(size: u64) -> Arc<Published> {
        Arc::new(Published { size, root: Hash([size as u8; 32]), note: format!("note {size}\n") })
    }

    #[test]
    fn a_round_ends_with_its_quorum_or_its_time_and_not_before() {
        let mut state = state(3);
        assert!(state.target(0, 2).is_none(), "nothing is published");
        state.newest = Some(published(5));
        assert_eq!(state.target(0, 2).unwrap().size, 5);
        state.newest = Some(published(9));
        assert_eq!(state.target(ROUND_US * 2, 2).unwrap().size, 5, "no quorum yet");
        assert!(state.cosigned(0, 5, "a\n".into(), 2).is_some_and(|cosigned| !cosigned.quorum));
        assert_eq!(state.target(ROUND_US * 2, 2).unwrap().size, 5);
        let cosigned = state.cosigned(2, 5, "c\n".into(), 2).unwrap();
        assert!(cosigned.quorum && cosigned.published.note == "note 5\na\nc\n" && state.witnessed == 5);
        assert_eq!(state.target(ROUND_US - 1, 2).unwrap().size, 5, "witnesses are not asked more often");
        assert_eq!(state.target(ROUND_US, 2).unwrap().size, 9);
        // The third witness answers about a round that is over.
        assert!(state.cosigned(1, 5, "b\n".into(), 2).is_none());
        assert_eq!((state.health[1].cosigned, state.health[1].away), (5, false));
        state.newest = Some(published(12));
        assert_eq!(state.target(ROUND_US + ROUND_US_MAX - 1, 2).unwrap().size, 9);
        assert_eq!(state.target(ROUND_US + ROUND_US_MAX, 2).unwrap().size, 12, "given up");
        assert_eq!(state.witnessed, 5);
    }

    #[test]
    fn one_witness_counts_once() {
        let mut state = state(2);
        state.newest = Some(published(5));
        state.target(0, 2).unwrap();
        for _ in 0..3 {
            let cosigned = state.cosigned(0, 5, "a\n".into(), 2).unwrap();
            assert!(!cosigned.quorum && cosigned.published.note == "note 5\na\n");
        }
    }
}

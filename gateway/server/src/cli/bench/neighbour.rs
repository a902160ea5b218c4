//! What is left of a decode's speed when one other process wants a whole processor.

use super::figures::Figure;
use super::own::Own;
use super::peer::Peer;
use super::spread::{Series, Spread};
use anyhow::{Context, Result};
use engine_model::Model;
use serde::Serialize;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// Computes for ever; ends when the benchmark does, even if that is killed.
const BUSY: &str = "while kill -0 \"$PPID\" 2>/dev/null; do :; done";

/// Decode of one sequence beside a busy process, through the same alone a moment before: 1 is undisturbed.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) engine: Spread,
    /// The fastest peer on the same file, where there is one.
    pub(super) peer: Option<PeerShare>,
}

#[derive(Debug, Serialize)]
pub(super) struct PeerShare {
    pub(super) peer: String,
    pub(super) share: Spread,
}

/// `peer` with the name that it has in the report.
pub(super) fn measure(
    model: &Arc<Model>,
    threads: usize,
    repetitions: usize,
    prompt: &[u32],
    mut peer: Option<(String, &mut Peer)>,
) -> Result<Report> {
    let figure = Figure::Decode { batch: 1 };
    let (sequences, tokens) = figure.room();
    let mut own = Own::new(model, threads, sequences, tokens)?;
    let (mut ours, mut theirs) = (Series::new(), Series::new());
    // The first repetition warms caches and is not counted.
    for repetition in 0..=repetitions {
        let share = share(|| figure.time_own(&mut own, prompt))?;
        if repetition > 0 {
            ours.push(share);
        }
        if let Some((_, peer)) = &mut peer {
            let share = self::share(|| Ok(figure.time_peer(peer, prompt)?.0))?;
            if repetition > 0 {
                theirs.push(share);
            }
        }
    }
    let peer =
        peer.map(|(peer, _)| Ok::<_, anyhow::Error>(PeerShare { peer, share: Spread::of(&theirs)? })).transpose()?;
    Ok(Report { engine: Spread::of(&ours)?, peer })
}

/// The speed beside a busy process through the speed alone.
fn share(mut speed: impl FnMut() -> Result<f64>) -> Result<f64> {
    let alone = speed()?;
    let neighbour = Neighbour::start()?;
    let disturbed = speed()?;
    drop(neighbour);
    Ok(disturbed / alone)
}

/// A process that computes until it is dropped.
struct Neighbour(Child);

impl Neighbour {
    fn start() -> Result<Self> {
        let mut busy = Command::new("sh");
        busy.args(["-c", BUSY]).stdin(Stdio::null()).stdout(Stdio::null());
        Ok(Self(busy.spawn().context("the busy neighbour cannot be started")?))
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_neighbour_is_there_for_the_second_of_two_speeds_and_gone_after() {
        let mut speeds = [8.0, 4.0].into_iter();
        assert_eq!(share(|| speeds.next().context("a third")).unwrap(), 0.5);
        let mut neighbour = Neighbour::start().unwrap();
        assert!(neighbour.0.try_wait().unwrap().is_none(), "it computes");
        let id = neighbour.0.id();
        drop(neighbour);
        assert!(!std::path::Path::new(&format!("/proc/{id}")).exists());
    }
}

//! Room for connections among the files that a process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The log, the listener, the processes of chat templates, and what libraries open for a moment.
const BESIDE_CONNECTIONS: u64 = 100;

/// What the limits of open files have to become.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    /// The limit to set, where another one is wanted.
    raise_to: Option<u64>,
    /// What there is room for then.
    limit: u64,
}

fn plan(now: Option<u64>, most: Option<u64>, needed: u64) -> Plan {
    let (now, most) = (now.unwrap_or(u64::MAX), most.unwrap_or(u64::MAX));
    let limit = needed.clamp(now.min(most), most);
    Plan { raise_to: (limit > now).then_some(limit), limit }
}

/// Raises the limit of open files as far as it has to be and may be raised, and warns when that is not enough: without a
/// descriptor nothing can be accepted, and nothing be written to the log.
pub(crate) fn make_room(connections_max: usize) {
    let needed = (connections_max as u64).saturating_add(BESIDE_CONNECTIONS);
    let limits = getrlimit(Resource::Nofile);
    let Plan { raise_to, limit } = plan(limits.current, limits.maximum, needed);
    let raised =
        raise_to.map(|limit| setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum: limits.maximum }));
    let limit = if let Some(Err(_)) = raised { limits.current.unwrap_or(limit) } else { limit };
    if limit < needed {
        tracing::warn!(
            limit,
            connections_max,
            needed,
            "the system allows too few open files for `limits.connections_max`: lower it, or raise the limit"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_as_far_as_needed_and_allowed() {
        for (now, most, raise_to, limit) in [
            (Some(1_024), Some(4_096), None, 1_024),
            (Some(256), Some(4_096), Some(1_000), 1_000),
            (Some(256), Some(512), Some(512), 512),
            (Some(512), Some(512), None, 512),
            (Some(256), None, Some(1_000), 1_000),
            (None, None, None, u64::MAX),
        ] {
            assert_eq!(plan(now, most, 1_000), Plan { raise_to, limit }, "{now:?} of {most:?}");
        }
    }
}

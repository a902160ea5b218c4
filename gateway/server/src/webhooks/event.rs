//! One entry about an incident as an event: CloudEvents 1.0, structured, JSON.

use crate::operators::describe;
use audit_log::{IncidentEntry, IncidentReport};
use audit_verify::rfc3339;
use serde_json::json;

/// Of an entry of this incident; `None` when it is not among the report's.
pub(super) fn encode(origin: &str, report: &IncidentReport, entry: IncidentEntry) -> Option<String> {
    // As it stood then, whatever has become of it since.
    let moves = report.moves.iter().take_while(|moved| moved.index <= entry.index).cloned().collect();
    let then = IncidentReport { moves, ..report.clone() };
    let (index, wall_us) = match then.moves.last() {
        None => (then.index, then.detected_us),
        Some(moved) => (moved.index, moved.wall_us),
    };
    if index != entry.index {
        return None;
    }
    let event = json!({
        "specversion": "1.0",
        "id": entry.leaf.to_string(),
        "source": origin,
        "type": format!("bulkhead.incident.{}", then.stage().as_str()),
        "subject": then.id.to_string(),
        "time": rfc3339(wall_us),
        "datacontenttype": "application/json",
        // Whoever is told knows persons by their references: names stay here.
        "data": describe(&then, |person| hex::encode(person)),
    });
    Some(event.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use audit_log::{
        Containment, Detected, Incident, IncidentClass, IncidentId, IncidentStage, IncidentState, MovedAt,
    };
    use policies_domain::{Digest, RequestId};
    use serde_json::Value;

    fn report() -> IncidentReport {
        let incident = Incident {
            incident: [7; 16],
            class: IncidentClass::ForeignPage,
            bytes_released: 0,
            step: Some(1),
            page: Some(2),
            generation: Some(3),
            request: RequestId::from_bytes([4; 16]),
            opened_index: 5,
            opened_leaf: Digest([6; 32]),
            victim: None,
        };
        let moved = |index: u64, state| MovedAt {
            index,
            leaf: Digest([index as u8; 32]),
            wall_us: index * 1_000_000,
            state: IncidentState {
                incident: [7; 16],
                sequence: 1,
                previous: Digest([6; 32]),
                state,
                actor: Some([0xac; 16]),
                second: None,
                evidence: None,
                action: Containment::None,
                notice: None,
            },
        };
        let moves = vec![moved(11, IncidentStage::Contained), moved(13, IncidentStage::Triaged)];
        let leaf = Digest([10; 32]);
        let detected = Detected::Fault { tenant: [8; 16], incident };
        IncidentReport { id: IncidentId([7; 16]), index: 10, leaf, detected_us: 10_000_000, detected, moves }
    }

    #[test]
    fn an_event_says_where_an_incident_stood_then() {
        let at = |index: u64| {
            let entry = IncidentEntry { index, leaf: Digest([index as u8; 32]), incident: IncidentId([7; 16]) };
            encode("localhost/test", &report(), entry).map(|text| serde_json::from_str::<Value>(&text).unwrap())
        };
        for (index, stage, moves) in [(10, "detected", 0), (11, "contained", 1), (13, "triaged", 2)] {
            let event = at(index).unwrap();
            assert_eq!(event["type"], format!("bulkhead.incident.{stage}"), "{event}");
            assert_eq!(event["id"], format!("{index:02x}").repeat(32));
            assert_eq!(event["time"], format!("1970-01-01T00:00:{index}.000Z"));
            assert_eq!((&event["specversion"], &event["source"]), (&"1.0".into(), &"localhost/test".into()));
            assert_eq!(event["subject"], "07".repeat(16));
            assert_eq!(event["data"]["moves"].as_array().unwrap().len(), moves);
            assert_eq!(event["data"]["state"], stage);
        }
        assert_eq!(at(13).unwrap()["data"]["moves"][1]["actor"], "ac".repeat(16));
        assert_eq!(at(12), None, "an entry of something else");
    }
}

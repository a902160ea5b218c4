//! Incidents in the Open Cybersecurity Schema Framework: what a SIEM takes.
//!
//! Two events each: a Detection Finding (class 2004), which says what was found, and an Incident Finding (class 2005), which
//! says where it stands. Both carry entry and leaf hash of the log, so that whoever has a receipt or the log can check them.

use serde_json::{Value, json};

/// The version of the framework that the names are from.
const VERSION: &str = "1.3.0";
/// The category of both.
const FINDINGS: u64 = 2;
const DETECTION_FINDING: u64 = 2_004;
const INCIDENT_FINDING: u64 = 2_005;
/// What is done to a finding.
const CREATE: u64 = 1;
const UPDATE: u64 = 2;
const CLOSE: u64 = 3;

/// The events of one incident as the gateway describes it.
pub(crate) fn findings(incident: &Value) -> [Value; 2] {
    let text = |name: &str| incident.get(name).and_then(Value::as_str).unwrap_or_default();
    let number = |name: &str| incident.get(name).and_then(Value::as_u64).unwrap_or_default();
    let state = text("state");
    let (detected, last) = (number("detected_us") / 1_000, last_us(incident) / 1_000);
    let severity = match text("severity") {
        "critical" => 5,
        "medium" => 3,
        _ => 4,
    };
    let closed = matches!(state, "resolved" | "false_positive");
    // Somebody who cosigns the log has fallen behind: nothing is said of isolation then.
    let is_lag = incident.get("cosigner").is_some();
    let failed = incident.get("detectors_failed");
    let kind = match (is_lag, failed) {
        (true, _) => "Audit of the log",
        (false, Some(_)) => "Self-test",
        (false, None) => "Isolation fault",
    };
    let title = format!("{kind}: {}", text("class").replace('_', " "));
    let info = json!({
        "uid": text("id"), "title": title, "types": [text("class")], "created_time": detected, "modified_time": last,
    });
    let of_lag = |name: &str| incident.get(name).cloned().unwrap_or_default();
    let lag = || {
        json!({"data": {
            "entry": number("entry"), "leaf": text("leaf"), "cosigner": text("cosigner"),
            "entries_cosigned": of_lag("entries_cosigned"), "entries_published": of_lag("entries_published"),
            "behind_us": of_lag("behind_us"), "limit_us": of_lag("limit_us"),
        }})
    };
    let fault = || {
        json!({"data": {
            "entry": number("entry"), "leaf": text("leaf"), "request": text("request"), "recipient": text("recipient"),
            "victim": incident.get("victim"), "bytes_released": number("bytes_released"), "page": incident.get("page"),
            "generation": incident.get("generation"), "step": incident.get("step"),
        }})
    };
    let evidence = match (is_lag, failed) {
        (true, _) => lag(),
        (false, Some(failed)) => {
            json!({"data": {"entry": number("entry"), "leaf": text("leaf"), "detectors_failed": failed}})
        }
        (false, None) => fault(),
    };
    let event = |class: u64, activity: u64, time: u64, status: u64| {
        json!({
            "class_uid": class, "category_uid": FINDINGS, "activity_id": activity, "type_uid": class * 100 + activity,
            "time": time, "severity_id": severity, "status_id": status,
            "metadata": {
                "version": VERSION, "uid": format!("{}-{class}", text("id")),
                "product": {"name": "Bulkhead", "vendor_name": "Bulkhead", "version": env!("CARGO_PKG_VERSION")},
            },
        })
    };
    // New, or suppressed and resolved when a person says so.
    let detection_status = match state {
        "detected" => 1,
        "false_positive" => 3,
        "resolved" => 4,
        _ => 2,
    };
    let mut detection = event(DETECTION_FINDING, if closed { CLOSE } else { CREATE }, detected, detection_status);
    detection["finding_info"] = info.clone();
    detection["is_alert"] = json!(true);
    detection["evidences"] = json!([evidence]);
    // New, in progress, closed.
    let incident_status = match state {
        "detected" => 1,
        "resolved" | "false_positive" => 5,
        _ => 2,
    };
    let activity = match (closed, state) {
        (true, _) => CLOSE,
        (false, "detected") => CREATE,
        (false, _) => UPDATE,
    };
    let mut standing = event(INCIDENT_FINDING, activity, last, incident_status);
    standing["finding_info_list"] = json!([info]);
    standing["is_suspected_breach"] = json!(number("bytes_released") > 0 && state != "false_positive");
    // False positive, true positive; nobody has said so otherwise.
    standing["verdict_id"] = match state {
        "false_positive" => json!(1),
        "resolved" => json!(2),
        _ => json!(0),
    };
    [detection, standing]
}

fn last_us(incident: &Value) -> u64 {
    let moves = incident.get("moves").and_then(Value::as_array);
    let last = moves.and_then(|moves| moves.last()).and_then(|moved| moved.get("at_us"));
    last.or_else(|| incident.get("detected_us")).and_then(Value::as_u64).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_has_the_numbers_of_its_class() {
        let incident = |state: &str, bytes: u64| {
            json!({
                "id": "07", "state": state, "class": "foreign_page", "severity": "critical", "detected_us": 1_000_000,
                "entry": 9, "leaf": "ab", "request": "r", "recipient": "cd", "victim": "ef", "bytes_released": bytes,
                "moves": [{"state": state, "at_us": 2_000_000}],
            })
        };
        let [detection, standing] = findings(&incident("contained", 7));
        assert_eq!((&detection["class_uid"], &detection["type_uid"]), (&json!(2004), &json!(200_401)));
        assert_eq!((&standing["class_uid"], &standing["type_uid"]), (&json!(2005), &json!(200_502)));
        assert_eq!((&detection["time"], &standing["time"]), (&json!(1_000), &json!(2_000)));
        assert_eq!((&detection["severity_id"], &standing["is_suspected_breach"]), (&json!(5), &json!(true)));
        assert_eq!(detection["evidences"][0]["data"]["leaf"], "ab");
        let lag = json!({
            "id": "08", "state": "detected", "class": "witness_lag", "severity": "medium", "detected_us": 1_000_000,
            "entry": 9, "leaf": "ab", "cosigner": "w", "behind_us": 77, "bytes_released": 0, "moves": [],
        });
        let [detection, standing] = findings(&lag);
        assert_eq!(detection["finding_info"]["title"], "Audit of the log: witness lag");
        assert_eq!((&detection["severity_id"], &standing["is_suspected_breach"]), (&json!(3), &json!(false)));
        assert_eq!(
            (&detection["evidences"][0]["data"]["behind_us"], &standing["type_uid"]),
            (&json!(77), &json!(200_501))
        );
        let self_test = json!({
            "id": "09", "state": "contained", "class": "detector_failed", "severity": "critical", "detected_us": 1_000_000,
            "entry": 9, "leaf": "ab", "detectors_failed": ["gate"], "bytes_released": 0, "moves": [],
        });
        let [detection, standing] = findings(&self_test);
        assert_eq!(detection["finding_info"]["title"], "Self-test: detector failed");
        assert_eq!((&detection["severity_id"], &standing["is_suspected_breach"]), (&json!(5), &json!(false)));
        assert_eq!(detection["evidences"][0]["data"]["detectors_failed"], json!(["gate"]));
        let [detection, standing] = findings(&incident("false_positive", 7));
        assert_eq!((&detection["status_id"], &standing["type_uid"]), (&json!(3), &json!(200_503)));
        assert_eq!((&standing["verdict_id"], &standing["is_suspected_breach"]), (&json!(1), &json!(false)));
    }
}

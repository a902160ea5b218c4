//! Public defects of delivery re-created: what belongs to one response comes to another, at each leg in turn. Each with
//! its fault, a control without it, and a legal look-alike.
//!
//! Two tenants' answers have letters of their own, so what a client has read says by itself whose it is: that, not the
//! checks, decides whether anything leaked.

use super::{give_up, nothing_done};
use crate::exchange::Exchange;
use crate::reply::{Format, Reply};
use crate::respond::RequestError;
use crate::seats::Seats;
use audit_log::{AuditConfig, AuditLog, Leg, OpenEntry, RequestFacts, SealReason};
use engine_runtime::Usage;
use gateway_auth::{ApiKey, KeyRing, KeySecret, TenantKey};
use policies_authz::{Authz, Facts};
use policies_domain::{
    Binding, Completion, Credential, Digest, Epoch, FinishReason, Generation, Layer, ModelName, PageId, PageRead,
    PageTrace, Permit, RequestId, SealError, SealKey, Step, TenantName,
};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// The letters of the two answers; nothing else in a response has them.
const LETTERS: [char; 2] = ['α', 'ω'];

/// Where two complete replies change places. Nothing is changed in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Swap {
    Nowhere,
    /// The engine's map from request to channel.
    EngineOutput,
    /// What the gate released waits in a place that both tasks share.
    GatewayTask,
    /// Each task has the other's connection.
    ClientSocket,
}

pub(super) struct World {
    folder: TempDir,
    audit: AuditLog,
    seats: Arc<Seats>,
    permits: [Permit; 2],
}

/// One request from its permit to its socket.
pub(super) struct Side {
    pub(super) permit: Permit,
    pub(super) key: SealKey,
    pub(super) binding: Binding,
    pub(super) http: Exchange,
    pub(super) entry: OpenEntry,
    pub(super) client: TcpStream,
}

impl World {
    /// Two requests, of two tenants or both of the first.
    pub(super) fn open(tenants: [usize; 2]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let secret = KeySecret::open_or_create(&folder.path().join("key-secret")).unwrap();
        let keys = ["acme", "globex"].map(|name| (TenantName::parse(name).unwrap(), ApiKey::mint().unwrap()));
        let tenant_keys =
            keys.each_ref().map(|(tenant, key)| TenantKey { tenant: tenant.clone(), hash: secret.hash(key) });
        let ring = KeyRing::new(secret, &tenant_keys).unwrap();
        let authz = Authz::read(Authz::DEFAULT_RULES).unwrap();
        let permits = [(tenants[0], 1), (tenants[1], 2)].map(|(tenant, request)| {
            let credential = Credential::new(keys[tenant].1.reveal().to_owned());
            let principal = ring.authenticate(Some(&credential)).unwrap();
            let (model, facts) = (ModelName::parse("smol").unwrap(), Facts { completion_tokens_max: None });
            authz.permit(&principal, RequestId::from_bytes([request; 16]), &model, &facts).unwrap()
        });
        let audit = AuditLog::open(AuditConfig::new(folder.path().join("log"), "localhost/test")).unwrap();
        Self { folder, audit, seats: Arc::new(Seats::default()), permits }
    }

    pub(super) async fn side(&self, number: usize) -> Side {
        let permit = self.permits[number].clone();
        let digest = Digest([0; 32]);
        let facts = RequestFacts { body: b"{}", model: digest, fingerprint: digest, stream: true };
        let entry = self.audit.open_request(&permit, facts).await.unwrap();
        let (mut http, client) = Exchange::over_loopback(&self.seats.take()).await;
        let key = SealKey::from_bytes([number as u8 + 1; 32]);
        let binding = Binding::of(&permit, http.connection());
        http.on_record(permit.request(), key.verifier(Layer::Payload, binding));
        Side { permit, key, binding, http, entry, client }
    }

    /// The log is closed before its folder goes.
    pub(super) fn close(self) {
        self.audit.shutdown();
        drop(self.folder);
    }
}

impl Side {
    /// A prefill chunk without text, some words, and the end.
    fn steps(&self, letter: char, epochs: &[u64]) -> Vec<Step> {
        let words = vec![letter.to_string(); epochs.len() - 1];
        self.saying(&words, epochs)
    }

    /// A prefill chunk without text, these words, and the end with the last of them.
    pub(super) fn saying(&self, words: &[String], epochs: &[u64]) -> Vec<Step> {
        let sealer = self.key.sealer(Layer::Text, self.binding);
        let last = epochs.len() - 1;
        let step = |(index, epoch): (usize, &u64)| {
            let text = if index == 0 { String::new() } else { words[index - 1].clone() };
            let finish = (index == last).then_some(FinishReason::Stop);
            let page =
                PageRead { page: PageId(3), generation: Generation(1), label: self.permit.label(), shared: false };
            Step {
                request: self.permit.request(),
                index: index as u32,
                trace: PageTrace { kept: 0, pages: vec![page] },
                restarted: index > 0 && epochs[index - 1] != *epoch,
                tokens: u32::from(index > 0),
                seal: sealer.seal(Epoch(*epoch), index as u32, text.as_bytes(), finish),
                text: Completion::new(text),
                finish,
            }
        };
        // A restarted sequence reads its pages in newer lives; here it is given none.
        let mut steps: Vec<Step> = epochs.iter().enumerate().map(step).collect();
        if let Some(first) = steps.iter().position(|step| step.restarted) {
            steps[first..].iter_mut().for_each(|step| step.trace.pages.clear());
        }
        steps
    }
}

/// The forms that an answer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Whole,
    Stream,
    ConstantShape,
}

const FORMS: [Form; 3] = [Form::Whole, Form::Stream, Form::ConstantShape];

impl Form {
    fn of(self, permit: &Permit) -> Format {
        match self {
            Self::Whole | Self::Stream => Format::plain(self == Self::Stream, permit),
            Self::ConstantShape => Format::shaped(permit, Duration::from_millis(1)),
        }
    }
}

/// What `serve` does with two requests at a time, with the replies exchanged where `swap` says.
async fn respond_both(
    sides: [Side; 2],
    steps: [Vec<Step>; 2],
    form: Form,
    swap: Swap,
) -> [(String, Option<RequestError>); 2] {
    let [mut a, mut b] = sides;
    let [mut steps_a, mut steps_b] = steps;
    if swap == Swap::EngineOutput {
        std::mem::swap(&mut steps_a, &mut steps_b);
    }
    let (http_a, http_b) = match swap {
        Swap::ClientSocket => (&mut b.http, &mut a.http),
        _ => (&mut a.http, &mut b.http),
    };
    let mut replies = [
        Some(Reply::new(http_a, form.of(&a.permit), &a.key, a.binding)),
        Some(Reply::new(http_b, form.of(&b.permit), &b.key, b.binding)),
    ];
    let mut entries = [Some(a.entry), Some(b.entry)];
    let permits = [a.permit, b.permit];
    let mut errors = [None, None];
    for pair in steps_a.into_iter().zip(steps_b) {
        let mut released = [None, None];
        for (number, step) in [pair.0, pair.1].into_iter().enumerate() {
            let (Some(reply), Some(entry)) = (&mut replies[number], &mut entries[number]) else { continue };
            match reply.arrived(step) {
                Ok(step) => released[number] = Some(entry.check(step).expect("its own pages, in order")),
                Err(error) => errors[number] = Some(error),
            }
        }
        if swap == Swap::GatewayTask {
            released.swap(0, 1);
        }
        for (number, released) in released.into_iter().enumerate() {
            let (Some(reply), Some(entry), Some(released)) = (&mut replies[number], &mut entries[number], released)
            else {
                continue;
            };
            if let Err(error) = reply.send(entry, released).await {
                errors[number] = Some(error);
            }
        }
        for number in [0, 1] {
            if errors[number].is_some() {
                replies[number] = None;
            }
        }
    }
    for number in [0, 1] {
        if let (Some(reply), Some(mut entry)) =
            (&mut replies[number], entries[number].take_if(|_| errors[number].is_none()))
        {
            match reply.close(&mut entry, Usage { prompt_tokens: 1, cached_tokens: 0, completion_tokens: 2 }).await {
                Ok(()) => {
                    let sealed = entry.seal(nothing_done(SealReason::Stop)).await.unwrap();
                    reply.finish(&sealed).await.unwrap();
                }
                Err(error) => {
                    errors[number] = Some(error);
                    entries[number] = Some(entry);
                }
            }
        }
    }
    drop(replies);
    for number in [0, 1] {
        // Every refusal becomes an incident that is durable.
        if let (Some(entry), Some(error)) = (entries[number].take(), &errors[number]) {
            let RequestError::Seal { leg, error } = error else { panic!("{error}") };
            let error = RequestError::Seal { leg: *leg, error: *error };
            let permit = &permits[number];
            let ended = give_up(entry, None, error, permit.request(), permit).await;
            assert!(matches!(ended, RequestError::Isolation { incident: Some(_) }), "{ended}");
        }
    }
    drop((a.http, b.http));
    let [error_a, error_b] = errors;
    [(transcript(a.client).await, error_a), (transcript(b.client).await, error_b)]
}

/// All that ever came to the client.
pub(super) async fn transcript(mut client: TcpStream) -> String {
    let mut bytes = Vec::new();
    client.read_to_end(&mut bytes).await.unwrap();
    String::from_utf8(bytes).unwrap()
}

/// What a leg says when the other side's reply comes.
fn seal_error(outcome: &Option<RequestError>) -> (Leg, SealError) {
    match outcome {
        Some(RequestError::Seal { leg, error }) => (*leg, *error),
        other => panic!("{other:?}"),
    }
}

const PLAIN: &[u64] = &[1, 1, 1, 1];

#[tokio::test]
async fn cross_talk_without_evidence() {
    // Fault: each swap is stopped before its first byte, by the leg that it happened on, for both of the two.
    for form in FORMS {
        for (swap, leg) in [
            (Swap::EngineOutput, Leg::EngineOutput),
            (Swap::GatewayTask, Leg::GatewayTask),
            (Swap::ClientSocket, Leg::ClientSocket),
        ] {
            let world = World::open([0, 1]);
            let sides = [world.side(0).await, world.side(1).await];
            let bindings = sides.each_ref().map(|side| side.binding);
            let steps = [sides[0].steps(LETTERS[0], PLAIN), sides[1].steps(LETTERS[1], PLAIN)];
            let outcomes = respond_both(sides, steps, form, swap).await;
            for (number, (text, error)) in outcomes.iter().enumerate() {
                assert!(!text.contains(LETTERS), "{swap:?}: {text}");
                let (found, error) = seal_error(error);
                assert_eq!(found, leg, "{swap:?}, {form:?}");
                // Named is whose text it was: at the socket one's own, which was about to go to the other's client.
                let whose = if swap == Swap::ClientSocket { number } else { 1 - number };
                assert_eq!(error.foreign(), Some(&bindings[whose]), "{swap:?}, {form:?}");
            }
            world.close();
        }
    }
    // Control: both get their own, and all of it.
    for form in FORMS {
        let world = World::open([0, 1]);
        let sides = [world.side(0).await, world.side(1).await];
        let steps = [sides[0].steps(LETTERS[0], PLAIN), sides[1].steps(LETTERS[1], PLAIN)];
        let outcomes = respond_both(sides, steps, form, Swap::Nowhere).await;
        for (number, (text, error)) in outcomes.iter().enumerate() {
            assert!(error.is_none(), "{error:?}");
            assert_eq!(text.matches(LETTERS[number]).count(), 3, "{text}");
            assert!(!text.contains(LETTERS[1 - number]));
        }
        world.close();
    }
    // Twin: two requests of one tenant say the same at the same time, one of them preempted and admitted again.
    let world = World::open([0, 0]);
    let sides = [world.side(0).await, world.side(1).await];
    let steps = [sides[0].steps(LETTERS[0], PLAIN), sides[1].steps(LETTERS[0], &[2, 2, 5, 5])];
    for (text, error) in respond_both(sides, steps, Form::Stream, Swap::Nowhere).await {
        assert!(error.is_none(), "{error:?}");
        assert_eq!(text.matches(LETTERS[0]).count(), 3, "{text}");
    }
    world.close();
}

#[tokio::test]
async fn cross_talk_within_one_tenant_is_cross_talk() {
    // Labels are alike, pages are the reader's own: nothing but the seal can tell.
    for swap in [Swap::EngineOutput, Swap::GatewayTask, Swap::ClientSocket] {
        let world = World::open([0, 0]);
        let sides = [world.side(0).await, world.side(1).await];
        let steps = [sides[0].steps(LETTERS[0], PLAIN), sides[1].steps(LETTERS[1], PLAIN)];
        for (text, error) in respond_both(sides, steps, Form::Stream, swap).await {
            assert!(!text.contains(LETTERS), "{text}");
            seal_error(&error);
        }
        world.close();
    }
}

#[tokio::test]
async fn abort_hits_successor() {
    // Fault: a request was cut off, its successor on the same connection gets what the engine still says of it.
    let world = World::open([0, 0]);
    let (first, second) = (world.side(0).await, world.side(1).await);
    let late = first.steps(LETTERS[0], PLAIN);
    let mut steps = second.steps(LETTERS[1], PLAIN);
    steps[1] = late.into_iter().nth(1).unwrap();
    let idle = world.side(0).await;
    let nothing = idle.steps(LETTERS[0], PLAIN);
    drop(first);
    let [(text, error), _] = respond_both([second, idle], [steps, nothing], Form::Stream, Swap::Nowhere).await;
    assert!(!text.contains(LETTERS[0]), "{text}");
    assert!(matches!(seal_error(&error), (Leg::EngineOutput, SealError::Foreign { index: 1, .. })));
    world.close();
    // Fault: what the engine says of the same request comes late, from an admission that was over.
    let world = World::open([0, 1]);
    let sides = [world.side(0).await, world.side(1).await];
    let late = sides[0].steps(LETTERS[0], &[3, 3, 1, 1]);
    let other = sides[1].steps(LETTERS[1], PLAIN);
    let [(text, error), (_, none)] = respond_both(sides, [late, other], Form::Stream, Swap::Nowhere).await;
    assert_eq!(text.matches(LETTERS[0]).count(), 1, "what came before is whole: {text}");
    assert_eq!(seal_error(&error), (Leg::EngineOutput, SealError::Ended { index: 2 }));
    assert!(none.is_none(), "the other goes on");
    world.close();
}

#[tokio::test]
async fn a_piece_that_is_missing_repeated_or_changed_is_not_sent() {
    type Change = fn(&mut Vec<Step>);
    let changes: [(Change, SealError); 4] = [
        (|steps| drop(steps.remove(1)), SealError::Gap { held: 2, wanted: 1 }),
        (|steps| steps.swap(1, 2), SealError::Gap { held: 2, wanted: 1 }),
        (|steps| steps[1].text = Completion::new("α!".into()), SealError::Altered { index: 1 }),
        (|steps| steps[1].finish = Some(FinishReason::Stop), SealError::Altered { index: 1 }),
    ];
    for (change, wanted) in changes {
        let world = World::open([0, 1]);
        let sides = [world.side(0).await, world.side(1).await];
        let mut steps = [sides[0].steps(LETTERS[0], PLAIN), sides[1].steps(LETTERS[1], PLAIN)];
        change(&mut steps[0]);
        let [(text, error), (_, none)] = respond_both(sides, steps, Form::Stream, Swap::Nowhere).await;
        assert!(!text.contains(LETTERS[0]), "{text}");
        assert_eq!(seal_error(&error), (Leg::EngineOutput, wanted));
        assert!(none.is_none(), "the other goes on: {none:?}");
        world.close();
    }
}

//! Readers in the gateway of requests that a worker decodes, against a worker that says what a test wants.

use super::words::{a_prompt, route, sent};
use super::*;
use engine_link::{LinkReceiver, LinkSender};

/// A gateway's streams, and what a worker gets of them.
struct Joined {
    inbox: Arc<Inbox>,
    streams: Streams,
    near: LinkReceiver,
    /// As long as these are there, so is the link.
    _ends: (LinkReceiver, LinkSender, Site),
}

impl Joined {
    fn with_places(places: usize) -> Self {
        let (inbox, site) = (Arc::new(Inbox::new(64)), Site::new());
        let streams = Streams::new(inbox.clone(), Arc::new(Counters::new()));
        let listener = site.listener();
        let near = thread::spawn(move || listener.accept().unwrap().shake_hands().unwrap().split());
        let (sender, receiver) = site.connect().split();
        let (near_sender, near) = near.join().unwrap();
        streams.join(sender, Place { first_page: 0, pages: 100, places }, &Arc::new(Inbox::new(1)));
        Self { inbox, streams, near, _ends: (receiver, near_sender, site) }
    }
}

#[test]
fn a_prompt_that_comes_back_as_another_one_is_an_isolation_fault() {
    let Joined { inbox, streams, mut near, .. } = Joined::with_places(3);
    let request = RequestId::from_bytes([6; 16]);
    let sequence = Sequence { tokens: vec![1, 2, 3], label: label(3), request };
    let sampling = Sampling { max_tokens: Some(9), ..Sampling::default() };
    let _steps = enqueue(&inbox, CONTEXT, sequence, sampling, sealer(label(3), request)).unwrap();
    let known = |label, tokens: &[u32]| {
        let prompt = Prompt { label, ..a_prompt(tokens.to_vec(), tokens.len()) };
        streams.knows(&prompt)
    };
    assert_eq!(known(label(3), &[1, 2, 3]), Known::Gone, "it was not submitted");
    thread::scope(|scope| {
        scope.spawn(|| streams.run());
        let _stops = Stops(&inbox);
        let submitted = near.receive().unwrap();
        assert!(matches!(wire::read(&submitted), Ok(Word::Stream(0, StreamWord::Submit(_)))));
        assert_eq!(known(label(3), &[1, 2, 3]), Known::Yes);
        assert_eq!(known(label(3), &[1, 2, 3, 9]), Known::Yes, "with what was sampled before");
        for (label, tokens) in [(label(4), &[1, 2, 3][..]), (label(3), &[1, 2, 4]), (label(3), &[1, 2])] {
            assert_eq!(known(label, tokens), Known::Other);
        }
    });
}

/// A request in the gateway, and what the worker is told of it.
fn request_of(inbox: &Arc<Inbox>, id: u8, tenant: u32) -> Steps {
    let (request, label) = (RequestId::from_bytes([id; 16]), label(tenant));
    let sequence = Sequence { tokens: vec![1, 2, 3], label, request };
    enqueue(inbox, CONTEXT, sequence, Sampling::default(), sealer(label, request)).unwrap()
}

#[test]
fn who_has_got_no_token_is_submitted_again_and_goes_on_where_its_reader_is() {
    let (inbox, counters) = (Arc::new(Inbox::new(64)), Arc::new(Counters::new()));
    let streams = Streams::new(inbox.clone(), counters);
    let site = Site::new();
    let listener = site.listener();
    let near = thread::spawn(move || [0, 1].map(|_| listener.accept().unwrap().shake_hands().unwrap().split().1));
    let senders = [0, 1].map(|_| site.connect().split());
    let [mut first, mut second] = near.join().unwrap();
    let [(first_sender, _first), (second_sender, _second)] = senders;
    let place = Place { first_page: 0, pages: 100, places: 9 };
    let group = Arc::new(Inbox::new(1));
    streams.join(first_sender, place, &group);
    let mut steps = request_of(&inbox, 6, 3);
    let mut begun = request_of(&inbox, 7, 3);
    let (own, request) = (sealer(label(3), RequestId::from_bytes([6; 16])), RequestId::from_bytes([6; 16]));
    let step = |index: u32, tokens| {
        let seal = own.seal(Epoch(40), index, b"", None);
        let (trace, text) = (PageTrace::default(), Completion::new(String::new()));
        let step = Step { request, index, trace, restarted: false, tokens, text, finish: None, seal };
        let usage = Usage { prompt_tokens: 3, cached_tokens: 0, completion_tokens: tokens as usize };
        StreamWord::Step(StepWord::of(&step, usage, Timings::default(), None))
    };
    thread::scope(|scope| {
        scope.spawn(|| streams.run());
        let _stops = Stops(&inbox);
        for _ in 0..2 {
            first.receive().unwrap();
        }
        streams.take(0, step(0, 0)).unwrap();
        streams.take(0, step(1, 0)).unwrap();
        streams.take(1, step(0, 1)).unwrap();
        assert!(steps.try_next().unwrap().is_ok());
        streams.part();
        assert!(begun.try_next().unwrap().is_ok());
        assert!(matches!(begun.try_next(), Some(Err(StepError::WorkerAway))), "what it said cannot be taken back");
        assert!(steps.try_next().unwrap().is_ok() && steps.try_next().is_none());
        streams.join(second_sender, place, &group);
        let word = wire::read(&second.receive().unwrap());
        let Ok(Word::Stream(0, StreamWord::Submit(again))) = word else { panic!("{word:?}") };
        let again = again.submitted(BOUNDS).unwrap();
        assert_eq!((again.after.steps, again.after.epoch, again.after.unread), (2, 40, 0));
        // The worker goes on from there.
        let (of_worker, counters) = (Arc::new(Inbox::new(4)), Counters::new());
        counters.go_on_from(Epoch(again.after.epoch));
        assert!(counters.next_epoch() > Epoch(40));
        let sequence = Sequence { tokens: again.tokens, label: again.label, request: again.request };
        let _steps = enqueue_after(&of_worker, CONTEXT, sequence, again.sampling, again.sealer, 2).unwrap();
        of_worker.look(|queue| {
            let Outlet::Reader(reader) = &mut queue.came[0].outlet else { panic!("no reader") };
            assert_eq!(reader.seal("", None).0, 2);
            assert!(queue.came[0].restarted, "its pages are others");
        });
    });
}

#[test]
fn cancelled_command_desync() {
    let Joined { inbox, streams, mut near, .. } = Joined::with_places(9);
    let step_of = |id: u8, tenant: u32, index: u32| {
        let request = RequestId::from_bytes([id; 16]);
        let seal = sealer(label(tenant), request).seal(Epoch(4), index, b"secret", None);
        let (trace, text) = (PageTrace::default(), Completion::new("secret".to_owned()));
        let step = Step { request, index, trace, restarted: false, tokens: 1, text, finish: None, seal };
        StreamWord::Step(StepWord::of(
            &step,
            Usage { prompt_tokens: 3, cached_tokens: 0, completion_tokens: 1 },
            Timings::default(),
            None,
        ))
    };
    thread::scope(|scope| {
        scope.spawn(|| streams.run());
        let _stops = Stops(&inbox);
        let mut others = Vec::new();
        // Whoever is cancelled before, after and between its answers: the next one gets none of them.
        for (round, answers) in (0..6).zip([0, 1, 2, 0, 1, 2]) {
            let [first, second] = [2 * round, 2 * round + 1];
            let cancelled = request_of(&inbox, first as u8, 1);
            near.receive().unwrap();
            for index in 0..answers {
                streams.take(first, step_of(first as u8, 1, index)).unwrap();
            }
            drop(cancelled);
            let word = wire::read(&near.receive().unwrap());
            assert!(matches!(word, Ok(Word::Stream(stream, StreamWord::Cancel)) if stream == first), "{word:?}");
            let mut next = request_of(&inbox, second as u8, 2);
            near.receive().unwrap();
            // The late answer to the cancelled one, then its own.
            streams.take(first, step_of(first as u8, 1, answers)).unwrap();
            assert!(next.try_next().is_none());
            streams.take(second, step_of(second as u8, 2, 0)).unwrap();
            let got = next.try_next().unwrap().unwrap();
            assert_eq!(
                (got.request, got.seal.origin().binding.label),
                (RequestId::from_bytes([second as u8; 16]), label(2))
            );
            // The fault: answers are taken for those of whoever came next. The seal's own check finds out.
            streams.take(second, step_of(first as u8, 1, 1)).unwrap();
            let foreign = next.try_next().unwrap().unwrap();
            let binding = *sealer(label(2), RequestId::from_bytes([second as u8; 16])).binding();
            let mut verifier = SealKey::from_bytes([second as u8; 32]).verifier(Layer::Text, binding);
            assert_eq!(verifier.verify(&got.seal, b"secret", None), Ok(()));
            let refused = verifier.verify(&foreign.seal, b"secret", None);
            assert!(matches!(refused, Err(SealError::Foreign { .. })), "{refused:?}");
            others.push(next);
        }
    });
}

#[test]
fn retry_record_dumps_payload() {
    // What is submitted, and again: nothing of it is in what a log could be given.
    let canary = "canary-7391";
    let inbox = Arc::new(Inbox::new(4));
    let request = RequestId::from_bytes([6; 16]);
    let sequence = Sequence { tokens: vec![17_391; 3], label: label(3), request };
    let sampling = Sampling { stop: vec![canary.to_owned()], ..Sampling::default() };
    let _steps = enqueue(&inbox, CONTEXT, sequence, sampling, sealer(label(3), request)).unwrap();
    let word = inbox.look(|queue| SubmitWord::of(&queue.came[0], AfterWord { steps: 2, epoch: 9, unread: 1 }).unwrap());
    let frame = wire::write(&Word::Stream(0, StreamWord::Submit(word)));
    let bounds = PromptBounds { vocabulary: 20_000, ..BOUNDS };
    let step = {
        let seal = sealer(label(3), request).seal(Epoch(1), 0, canary.as_bytes(), None);
        let (trace, text) = (PageTrace::default(), Completion::new(canary.to_owned()));
        let step = Step { request, index: 0, trace, restarted: false, tokens: 1, text, finish: None, seal };
        StreamWord::Step(StepWord::of(&step, Usage::default(), Timings::default(), None))
    };
    let prompt = sent(Parcel::Prompt { route: route(), prompt: Box::new(a_prompt(vec![17_391; 3], 3)) }).remove(0);
    let Ok(Word::Stream(_, StreamWord::Submit(submit))) = wire::read(&frame) else { panic!("no request") };
    let said = format!("{:?} {:?} {frame:?} {:?} {step:?}", wire::read(&frame), wire::read(&prompt), hello());
    let refused = submit.submitted(BOUNDS).err().map(|error| error.to_string()).unwrap();
    for secret in [canary, "17391", "[6, 6", "[9, 9"] {
        assert!(!said.contains(secret) && !refused.contains(secret), "{secret} in {said} {refused}");
    }
    // The control: it is all there for whoever computes it.
    let Ok(Word::Stream(_, StreamWord::Submit(submit))) = wire::read(&frame) else { panic!("no request") };
    let submitted = submit.submitted(bounds).unwrap();
    assert_eq!((submitted.tokens, submitted.sampling.stop), (vec![17_391; 3], vec![canary.to_owned()]));
}

#[test]
fn a_worker_is_given_no_more_than_it_has_places_for() {
    // Four places, of which one tenant may have three.
    let Joined { inbox, streams, mut near, .. } = Joined::with_places(4);
    let mut asked: Vec<Steps> = (0..5).map(|id| request_of(&inbox, id, 3)).collect();
    asked.extend([request_of(&inbox, 5, 4), request_of(&inbox, 6, 5)]);
    thread::scope(|scope| {
        scope.spawn(|| streams.run());
        let _stops = Stops(&inbox);
        let mut submitted = || match wire::read(&near.receive().unwrap()) {
            Ok(Word::Stream(stream, StreamWord::Submit(_))) => stream,
            word => panic!("{word:?}"),
        };
        assert_eq!([submitted(), submitted(), submitted(), submitted()], [0, 1, 2, 5]);
        // One has ended: there is a place.
        streams.take(1, StreamWord::failed(StepError::Internal, Usage::default(), Timings::default())).unwrap();
        assert_eq!(submitted(), 3);
    });
}

#[test]
fn a_worker_that_says_more_than_was_read_is_not_believed() {
    let Joined { inbox, streams, mut near, .. } = Joined::with_places(3);
    let request = RequestId::from_bytes([6; 16]);
    let sequence = Sequence { tokens: vec![1, 2, 3], label: label(3), request };
    let own = sealer(label(3), request);
    let mut steps = enqueue(&inbox, CONTEXT, sequence, Sampling::default(), sealer(label(3), request)).unwrap();
    let step = |index: u32, page: u32| {
        let read = PageRead { page: PageId(page), generation: Generation(7), label: label(2), shared: false };
        let (trace, seal) = (PageTrace { kept: 2, pages: vec![read] }, own.seal(Epoch(4), index, b"x", None));
        let text = Completion::new("x".to_owned());
        let step = Step { request, index, trace, restarted: false, tokens: 1, text, finish: None, seal };
        StreamWord::Step(StepWord::of(&step, Usage::default(), Timings::default(), None))
    };
    thread::scope(|scope| {
        scope.spawn(|| streams.run());
        let _stops = Stops(&inbox);
        near.receive().unwrap();
        assert!(matches!(streams.take(0, step(0, 100)), Err(WordError::Field("page"))), "a page that it has not");
        assert!(streams.take(7, step(0, 0)).is_ok(), "a stream that ended is not missed");
        assert!(matches!(streams.take(0, StreamWord::Cancel), Err(WordError::NotHere)));
        for index in 0..32 {
            streams.take(0, step(index, 5)).unwrap();
        }
        assert!(matches!(streams.take(0, step(32, 5)), Err(WordError::Field("steps"))));
        // What it says of itself comes through as it is: the gate judges it.
        let came = steps.try_next().unwrap().unwrap();
        assert_eq!((came.request, came.index, came.trace.kept), (request, 0, 2));
        assert_eq!(came.trace.pages[0].label, label(2));
        assert_eq!(came.seal, own.seal(Epoch(4), 0, b"x", None));
    });
}

#[test]
fn without_a_worker_that_decodes_requests_wait_and_are_told() {
    let (inbox, counters) = (Arc::new(Inbox::new(64)), Arc::new(Counters::new()));
    let streams = Streams::new(inbox.clone(), counters.clone());
    streams.part();
    assert!(counters.worker_away.load(Ordering::SeqCst));
    let request = RequestId::from_bytes([6; 16]);
    let sequence = Sequence { tokens: vec![1, 2, 3], label: label(3), request };
    let mut steps = enqueue(&inbox, CONTEXT, sequence, Sampling::default(), sealer(label(3), request)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| streams.run());
        let _stops = Stops(&inbox);
        inbox.wait_until(Some(Duration::from_millis(400)), |_| false);
        assert!(steps.try_next().is_none(), "it may come");
    });
    assert!(matches!(steps.try_next(), Some(Err(StepError::Stopped))));
}

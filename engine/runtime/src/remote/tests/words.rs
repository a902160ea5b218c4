//! Words on their way, and what is no word.

use super::*;

pub(super) fn route() -> Route {
    let id = HandoffId::from_bytes([1; 16]);
    Route { id, attempt: Attempt(2), prefill: Incarnation(3), decode: Incarnation(u64::MAX) }
}

pub(super) fn key() -> HandoffKey {
    HandoffKey::new([4; 32])
}

fn of_decode() -> Reader {
    Reader::new(key(), Peer::Decode(PromptBounds { vocabulary: 100, context_length: 40 }), false)
}

/// The parcel that a frame is, or makes whole.
fn parcel(reader: &mut Reader, frame: &Frame) -> Result<Option<Parcel>, WordError> {
    match reader.take(frame)? {
        Came::Parcel(parcel) => Ok(Some(parcel)),
        Came::Nothing => Ok(None),
        Came::Stream(..) => panic!("there are no streams"),
    }
}

fn of_prefill() -> Reader {
    Reader::new(key(), Peer::Prefill { first_page: 1000, pages: 50 }, false)
}

pub(super) fn a_prompt(tokens: Vec<u32>, prompt_tokens: usize) -> Prompt {
    let ticket = Ticket { request: RequestId::from_bytes([6; 16]), epoch: Epoch(9) };
    let sampling =
        Sampling { temperature: 0.3, top_k: 7, seed: u64::MAX, presence_penalty: -1.5, ..Sampling::default() };
    let sampler = Ticketed::new(ticket, Sampler::resume(sampling, &tokens, prompt_tokens));
    let (request, label) = (ticket.request, label(3));
    Prompt { request, ticket, label, tokens, prompt_tokens, tokens_max: 77, sampler, restarts: 2, presence: None }
}

pub(super) fn sent(parcel: Parcel) -> Vec<Frame> {
    wire::frames(parcel, &key())
}

#[test]
fn a_prompt_comes_over_with_its_sampler() {
    let tokens = vec![1, 99, 0, 5, 5, 7];
    let frames = sent(Parcel::Prompt { route: route(), prompt: Box::new(a_prompt(tokens.clone(), 4)) });
    let Ok(Some(Parcel::Prompt { route: to, prompt })) = parcel(&mut of_decode(), &frames[0]) else {
        panic!("no prompt")
    };
    let terms = Terms::new([4; 32], 256, FINGERPRINT, false, 4).unwrap();
    assert_eq!((to, prompt.restarts, prompt.tokens_max, prompt.prompt_tokens), (route(), 2, 77, 4));
    assert_eq!(prompt.ticket, a_prompt(tokens.clone(), 4).ticket);
    assert_eq!(prompt.digest(&terms), a_prompt(tokens.clone(), 4).digest(&terms), "all that decides its first token");
    // Four tokens of the prompt or five: the sampler has drawn another number of times.
    assert_ne!(prompt.digest(&terms), a_prompt(tokens, 5).digest(&terms));
    assert!(!format!("{:?}", wire::read(&frames[0])).contains("99"), "no token in it");
}

#[test]
fn what_a_prompt_cannot_be_is_refused() {
    for (tokens, prompt_tokens) in [(vec![], 0), (vec![1; 41], 3), (vec![1, 100], 2), (vec![1, 2], 0), (vec![1, 2], 3)]
    {
        let frames = sent(Parcel::Prompt { route: route(), prompt: Box::new(a_prompt(tokens, prompt_tokens)) });
        assert!(matches!(parcel(&mut of_decode(), &frames[0]), Err(WordError::Field(_))));
    }
    let mut other = a_prompt(vec![1, 2], 2);
    other.ticket.epoch = Epoch(10);
    let frames = sent(Parcel::Prompt { route: route(), prompt: Box::new(other) });
    assert_eq!(frames.len(), 0, "a sampler of another admission does not travel");
}

#[test]
fn pages_come_whole_in_order_and_not_among_others() {
    let bytes: Vec<u8> = (0..96).collect();
    let frames = sent(Parcel::Bytes { route: route(), pages: 3, bytes: bytes.clone() });
    assert_eq!(frames.len(), 3);
    let mut reader = of_prefill();
    assert!(matches!(parcel(&mut reader, &frames[0]), Ok(None)));
    assert!(matches!(parcel(&mut reader, &frames[1]), Ok(None)));
    let whole = parcel(&mut reader, &frames[2]).unwrap();
    assert!(matches!(whole, Some(Parcel::Bytes { pages: 3, bytes: came, .. }) if came == bytes));
    let abort = Message::Abort { route: route(), reason: AbortReason::Expired };
    let message = sent(Parcel::Message { from: Party::Prefill, to: Party::Decode, message: abort });
    let other = sent(Parcel::Bytes { route: Route { attempt: Attempt(3), ..route() }, pages: 3, bytes: bytes.clone() });
    let more = sent(Parcel::Bytes { route: route(), pages: 4, bytes: (0..128).collect() });
    let longer = sent(Parcel::Bytes { route: route(), pages: 3, bytes: (0..99).collect() });
    for (first, second) in [
        (&frames[1], None),
        (&frames[0], Some(&frames[0])),
        (&frames[0], Some(&frames[2])),
        (&frames[0], Some(&message[0])),
        (&frames[0], Some(&other[1])),
        (&frames[0], Some(&more[1])),
        (&frames[0], Some(&longer[1])),
    ] {
        let mut reader = of_prefill();
        let came = match (parcel(&mut reader, first), second) {
            (Ok(None), Some(second)) => parcel(&mut reader, second),
            (came, _) => came,
        };
        assert!(matches!(came, Err(WordError::Order)), "{first:?} {second:?}");
    }
}

#[test]
fn a_worker_s_pages_are_told_by_numbers_of_their_own_and_it_has_no_others() {
    let read = |page| PageRead { page: PageId(page), generation: Generation(7), label: label(2), shared: true };
    let said = |page| Said::Read {
        trace: PageTrace { kept: 3, pages: vec![read(page)] },
        prefill_us: 5,
        cost_ns: 6,
        cached_tokens: 16,
    };
    let frames = sent(Parcel::Said { route: route(), said: said(49) });
    let came = parcel(&mut of_prefill(), &frames[0]).unwrap();
    assert!(matches!(came, Some(Parcel::Said { said: came, .. }) if came == said(1049)));
    let fault = |page| Said::Failed(StepError::PageFault { page: PageId(page), layer: 3 });
    let frames = sent(Parcel::Said { route: route(), said: fault(0) });
    let came = parcel(&mut of_prefill(), &frames[0]).unwrap();
    assert!(matches!(came, Some(Parcel::Said { said: came, .. }) if came == fault(1000)));
    for said in [said(50), fault(u32::MAX)] {
        let frames = sent(Parcel::Said { route: route(), said });
        assert!(matches!(parcel(&mut of_prefill(), &frames[0]), Err(WordError::Field("page"))));
    }
    for error in [
        StepError::ReadSet,
        StepError::RowBinding,
        StepError::PoolExhausted,
        StepError::Stopped,
        StepError::NotANumber,
        StepError::Internal,
    ] {
        let frames = sent(Parcel::Said { route: route(), said: Said::Failed(error) });
        let came = parcel(&mut of_prefill(), &frames[0]).unwrap();
        assert!(matches!(came, Some(Parcel::Said { said: Said::Failed(came), .. }) if came == error));
    }
}

#[test]
fn a_message_goes_to_its_own_side_and_is_whole() {
    let abort = Message::Abort { route: route(), reason: AbortReason::Expired };
    let between = |from, to| sent(Parcel::Message { from, to, message: abort.clone() }).remove(0);
    for (from, to, of_prefill_passes, of_decode_passes) in [
        (Party::Prefill, Party::Decode, true, false),
        (Party::Prefill, Party::Gateway, true, false),
        (Party::Decode, Party::Prefill, false, true),
        (Party::Gateway, Party::Prefill, false, true),
        (Party::Decode, Party::Gateway, false, false),
        (Party::Prefill, Party::Prefill, false, false),
    ] {
        let frame = between(from, to);
        assert_eq!(parcel(&mut of_prefill(), &frame).is_ok(), of_prefill_passes, "{from:?} to {to:?}");
        assert_eq!(parcel(&mut of_decode(), &frame).is_ok(), of_decode_passes, "{from:?} to {to:?}");
    }
    let frame = between(Party::Prefill, Party::Decode);
    let mut other = Reader::new(HandoffKey::new([5; 32]), Peer::Prefill { first_page: 0, pages: 1 }, false);
    let other = parcel(&mut other, &frame);
    assert!(matches!(other, Err(WordError::Message(_))), "another boot's key");
    // Introductions are over.
    let welcome = wire::write(&Word::Welcome(Welcome { life: 1, boot: 2, pages: 3 }));
    assert!(matches!(parcel(&mut of_prefill(), &welcome), Err(WordError::NotHere)));
    let to_decode = Word::Message(PartyWord::Prefill, PartyWord::Decode, vec![1, 2, 3].into());
    assert!(matches!(parcel(&mut of_prefill(), &wire::write(&to_decode)), Err(WordError::Message(_))));
}

fn any_frames() -> Vec<Frame> {
    let abort = Message::Abort { route: route(), reason: AbortReason::Expired };
    let read = PageRead { page: PageId(4), generation: Generation(7), label: label(2), shared: true };
    let trace = PageTrace { kept: 2, pages: vec![read; 3] };
    [
        Parcel::Message { from: Party::Prefill, to: Party::Decode, message: abort },
        Parcel::Prompt { route: route(), prompt: Box::new(a_prompt(vec![1, 2, 3], 2)) },
        Parcel::Bytes { route: route(), pages: 2, bytes: vec![5; 64] },
        Parcel::Said { route: route(), said: Said::Read { trace, prefill_us: 9, cost_ns: 8, cached_tokens: 32 } },
        Parcel::Said { route: route(), said: Said::Failed(StepError::Internal) },
    ]
    .into_iter()
    .flat_map(sent)
    .chain([wire::write(&Word::Hello(hello())), wire::write(&Word::Refused(Refused::Busy))])
    .collect()
}

proptest! {
    /// Whatever comes is a parcel or an error, and no message of the protocol survives a changed byte.
    #[test]
    fn bytes_that_are_no_word_are_refused(
        which in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        change in 1u8..,
        cut in any::<bool>(),
        noise in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        for mut reader in [of_decode(), of_prefill()] {
            let mut frame = which.get(&any_frames()).clone();
            let at = at.index(frame.bytes.len());
            if cut {
                frame.bytes.truncate(at);
                prop_assert!(parcel(&mut reader, &frame).is_err());
            } else {
                frame.bytes[at] ^= change;
                if let Ok(Some(Parcel::Message { .. })) = parcel(&mut reader, &frame) {
                    // Only who says it to whom is outside its seal.
                    prop_assert!(at < 4, "{at}");
                }
            }
            let mut longer = which.get(&any_frames()).clone();
            longer.bytes.push(0);
            prop_assert!(parcel(&mut reader, &longer).is_err());
            let _any = parcel(&mut reader, &Frame { kind: 1, bytes: noise.clone() });
            let other = parcel(&mut reader, &Frame { kind: 2, bytes: noise.clone() });
            prop_assert!(other.is_err());
        }
    }
}

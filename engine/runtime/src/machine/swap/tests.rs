use super::*;
use crate::compute::tracer::Tracer;
use crate::executor::tests::{label, prompt, sealer};
use crate::machine::Pages;
use crate::outlet::Reader;
use crate::sampling::Sampling;
use crate::sequence::Sequence;
use engine_kernels::Span;
use engine_kv::PageFormat;

const PAGES: usize = 8;

fn machine(bytes_max: usize) -> Machine<Tracer> {
    let pages = Pages { count: PAGES, first: 0, boot_secret: [1; 32], format: PageFormat::F32, compat: 0 };
    let mut machine = Machine::new(Tracer::new(PAGES), pages);
    machine.keep_swapped([9; 32], bytes_max);
    machine
}

/// A request that has written so many tokens.
fn request(machine: &mut Machine<Tracer>, number: u8, tenant: u32, tokens: usize) -> Running {
    let (request, label) = (RequestId::from_bytes([number; 16]), label(tenant));
    let reader = Reader::new(tokio::sync::mpsc::channel(4).0, sealer(label, request));
    let sequence = Sequence { tokens: prompt(tenant, tokens as u32), label, request };
    let mut request = Running::new(sequence, Sampling::default(), 256, reader);
    let mut table = BlockTable::new(&machine.pool, label);
    machine.grow(&mut table, tokens).unwrap();
    let mut pages = Vec::new();
    table.capabilities(0, tokens, &mut pages);
    let pages: Vec<_> = pages.into_iter().map(page_ref).collect();
    let span = Span { ticket: 1, tokens: &request.tokens, position: 0, pages: &pages, logits: false };
    machine.compute.run(&[span], &|| false).unwrap();
    table.advance(tokens).unwrap();
    request.begin(table);
    request
}

fn bytes_of(machine: &Machine<Tracer>, table: &BlockTable) -> Vec<Vec<u8>> {
    let mut capabilities = Vec::new();
    table.capabilities(0, table.tokens(), &mut capabilities);
    let page = |capability: &Capability| machine.compute.read_page(page_ref(*capability)).unwrap();
    capabilities.iter().map(|capability| page(capability).contents().flatten().copied().collect()).collect()
}

fn give_way(machine: &mut Machine<Tracer>, request: &mut Running) -> Option<Swapped> {
    let swapped = machine.swap_out(request, usize::MAX, true);
    request.begin_anew();
    machine.reclaim();
    swapped
}

#[test]
fn what_comes_back_is_what_left_in_new_lives() {
    let mut machine = machine(1 << 20);
    let mut request = request(&mut machine, 1, 1, 40);
    let before = bytes_of(&machine, request.block_table.as_ref().unwrap());
    let swapped = give_way(&mut machine, &mut request).unwrap();
    assert_eq!((machine.pool.counts().free, swapped.tokens), (PAGES, 40), "its pages are free meanwhile");
    let table = machine.swap_in(&request, &swapped).unwrap();
    assert_eq!((table.tokens(), table.pages(), table.label()), (40, 3, label(1)));
    assert_eq!(bytes_of(&machine, &table), before);
    machine.follow();
    assert_eq!(machine.custody.sums(table.sequence()).unwrap().pages(), 3, "the log knows whose they are");
    let room = swapped.room.clone();
    assert!(room.bytes.load(Ordering::Relaxed) > 0);
    drop(swapped);
    assert_eq!(room.bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn a_byte_that_changed_meanwhile_ends_it_and_its_pages_are_evidence() {
    let mut machine = machine(1 << 20);
    let mut request = request(&mut machine, 1, 1, 40);
    let mut swapped = give_way(&mut machine, &mut request).unwrap();
    let middle = swapped.bytes.len() / 2;
    swapped.bytes[middle] ^= 1;
    assert_eq!(machine.swap_in(&request, &swapped).unwrap_err(), SwapInError::Refused(Check::V7));
    machine.reclaim();
    assert_eq!((machine.pool.counts().quarantined, machine.pool.counts().free), (3, PAGES - 3));
}

#[test]
fn nobody_gets_the_pages_of_another_request_or_tenant() {
    let mut machine = machine(1 << 20);
    let mut own = request(&mut machine, 1, 1, 20);
    let swapped = give_way(&mut machine, &mut own).unwrap();
    for (number, tenant, check) in [(2, 1, Check::V4), (1, 2, Check::V3)] {
        let other = request(&mut machine, number, tenant, 1);
        assert_eq!(machine.swap_in(&other, &swapped).unwrap_err(), SwapInError::Refused(check));
    }
    assert!(machine.swap_in(&own, &swapped).is_ok());
}

#[test]
fn what_has_no_room_is_computed_again() {
    let page_bytes = {
        let mut machine = machine(1 << 20);
        let mut request = request(&mut machine, 1, 1, 16);
        give_way(&mut machine, &mut request).unwrap().bytes.len()
    };
    let mut machine = machine(3 * page_bytes);
    let mut first = request(&mut machine, 1, 1, 32);
    let mut second = request(&mut machine, 2, 2, 32);
    let swapped = give_way(&mut machine, &mut first);
    assert!(swapped.is_some() && give_way(&mut machine, &mut second).is_none());
    drop(swapped);
    let mut third = request(&mut machine, 3, 2, 48);
    assert!(give_way(&mut machine, &mut third).is_some(), "whoever is gone makes room");
    assert!(super::Swap::new([0; 32], 0, 100).is_none());
    machine.keep_swapped([9; 32], 0);
    let mut fourth = request(&mut machine, 4, 2, 16);
    assert!(give_way(&mut machine, &mut fourth).is_none());
}

#[test]
fn with_no_free_pages_nothing_is_lost() {
    let mut machine = machine(1 << 20);
    let mut first = request(&mut machine, 1, 1, 40);
    let swapped = give_way(&mut machine, &mut first).unwrap();
    let holder = request(&mut machine, 2, 2, 16 * (PAGES - 2));
    assert_eq!(machine.swap_in(&first, &swapped).unwrap_err(), SwapInError::NoPages);
    drop(holder);
    machine.reclaim();
    assert!(machine.swap_in(&first, &swapped).is_ok());
}

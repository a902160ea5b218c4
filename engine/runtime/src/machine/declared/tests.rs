use super::*;
use crate::compute::tracer::Tracer;
use crate::executor::tests::{label, prompt};
use crate::machine::Pages;
use engine_kv::PageFormat;

const PAGES: usize = 8;

fn machine() -> Machine<Tracer> {
    let pages = Pages { count: PAGES, first: 0, boot_secret: [1; 32], format: PageFormat::F32, compat: 0 };
    let mut machine = Machine::new(Tracer::new(PAGES), pages);
    machine.keep_prefixes([2; 32], [3; 32]);
    machine
}

#[test]
fn what_is_declared_is_found_by_every_tenant_and_by_nobody() {
    let mut machine = machine();
    machine.declare(&prompt(1, 48), 20, PAGES).unwrap();
    machine.declare(&[prompt(1, 32), prompt(2, 16)].concat(), 20, PAGES).unwrap();
    let longer = prompt(1, 80);
    assert_eq!([label(1), label(2), Label::NOBODY].map(|of| machine.found(of, &longer).tokens()), [48, 48, 0]);
    assert_eq!(machine.pages_of_everybody(), 4, "what both begin with is there once");
    assert_eq!((machine.cached(), machine.caching_tenants().count()), (0, 0), "and is nobody's to give away");
    let table = machine.begin_table(label(2), &longer);
    assert_eq!((table.tokens(), table.pages_shared()), (48, 3));
    drop(table);
    machine.reclaim();
    assert_eq!((machine.pool.counts().free, machine.pages_of_everybody()), (PAGES - 4, 4));
}

#[test]
fn a_prefix_that_does_not_fit_or_is_not_kept_leaves_nothing() {
    let mut machine = machine();
    assert!(matches!(machine.declare(&prompt(1, 16 * 9), 20, PAGES), Err(DeclareError::Pages(_))));
    assert!(matches!(machine.declare(&prompt(1, 48), 20, 2), Err(DeclareError::NotKept)), "more than may be kept");
    machine.cache = None;
    assert!(matches!(machine.declare(&prompt(1, 48), 20, PAGES), Err(DeclareError::NotKept)));
    assert_eq!(machine.found(label(1), &prompt(1, 80)).tokens(), 0);
}

/// The second chunk, after the first one's page got another tag.
fn second_chunk(believed: bool) -> (Machine<Tracer>, Result<(), DeclareError>) {
    let (mut machine, tokens) = (machine(), prompt(1, 48));
    let mut block_table = BlockTable::new_public(&machine.pool);
    let mut table = TracedTable::new(block_table.sequence());
    machine.compute_public(&tokens[..20], &mut block_table, &mut table).unwrap();
    machine.compute.page(table.entries()[0].page)[0] ^= 1;
    if believed {
        machine.compute.believe_block_tables();
    }
    let computed = machine.compute_public(&tokens[20..], &mut block_table, &mut table);
    (machine, computed)
}

#[test]
fn a_page_that_is_not_its_own_ends_the_declaration() {
    let (machine, computed) = second_chunk(false);
    assert!(matches!(computed, Err(DeclareError::PageFault { .. })));
    assert_eq!(machine.pool.counts().quarantined, 1, "it is kept as evidence");
}

#[test]
fn what_the_kernels_read_is_compared_with_what_was_written_down() {
    assert!(matches!(second_chunk(true).1, Err(DeclareError::ReadSet)));
}

#[test]
fn nothing_of_a_tenants_becomes_everybodys() {
    let (mut machine, tokens) = (machine(), prompt(1, 48));
    let mut block_table = BlockTable::new(&machine.pool, label(1));
    let mut table = TracedTable::new(block_table.sequence());
    let computed = machine.compute_public(&tokens, &mut block_table, &mut table);
    assert!(matches!(computed, Err(DeclareError::ReadSet)), "{computed:?}");
}

//! Pages of own entries: whole ones pass, and none of an operator's ways to leave something out does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod forged;

use audit_provenance::{Body, Entry, EntryVersion, TenantLink, TenantRef};
use audit_tlog::{Cosigner, KeyChain, LogSigner, RotationStage, SignedRotation, TiledTree, leaf_hash};
use audit_verify::{Held, MineReport, Witnesses, check_mine};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use forged::{ACME, Forge, GLOBEX, openings, signer, trace};
use policies_domain::Digest;
use serde_json::{Value, json};

/// Answers of both tenants: acme's entries are 1, 2, 5, 6, 9, 10 and globex' 3, 4, 7, 8.
fn forge() -> Forge {
    let mut forge = Forge::new();
    for (tenant, request) in [(ACME, 1), (GLOBEX, 2), (ACME, 3), (GLOBEX, 4), (ACME, 5)] {
        forge.answer(tenant, request);
    }
    forge
}

const MINE: [u64; 6] = [1, 2, 5, 6, 9, 10];

/// A page as the gateway writes it: these entries of the log, from that number on.
fn page(forge: &Forge, from: u64, indices: &[u64], held: Option<u64>) -> Value {
    let (files, checkpoint) = forge.files();
    let tree = TiledTree::new(checkpoint.size, checkpoint.root, &files);
    let text = |hashes: Vec<audit_tlog::Hash>| hashes.iter().map(ToString::to_string).collect::<Vec<_>>();
    let entry = |index: &u64| {
        let bytes = tree.entry(*index).unwrap();
        let mut shown = json!({
            "index": index,
            "entry": BASE64_STANDARD.encode(&bytes),
            "proof": text(tree.prove_inclusion(*index).unwrap()),
        });
        if let Body::Opened(_) = Entry::decode(&bytes).unwrap().body {
            shown["tenant_salt"] = BASE64_STANDARD.encode(openings().tenant).into();
        }
        shown
    };
    let held = held.map(|size| {
        let proof = if size == checkpoint.size { Vec::new() } else { tree.prove_consistency(size).unwrap() };
        json!({"size": size, "proof": text(proof)})
    });
    json!({
        "object": "isolation.own_entries", "version": 1, "tenant": "acme", "tenant_ref": hex::encode(ACME), "from": from,
        "checkpoint": checkpoint.sign(&signer()).unwrap(), "held": held,
        "entries": indices.iter().map(entry).collect::<Vec<_>>(), "next": null,
    })
}

fn check_with(pages: &[Value], held: Held<'_>) -> Result<MineReport, &'static str> {
    let pages: Vec<Vec<u8>> = pages.iter().map(|page| page.to_string().into_bytes()).collect();
    check_mine(&pages, &signer().verifier_key(), held).map_err(|refusal| refusal.check())
}

fn check(pages: &[Value]) -> Result<MineReport, &'static str> {
    check_with(pages, Held::default())
}

fn receipt(forge: &Forge, opened: u64) -> Vec<u8> {
    forge.receipt(opened, opened + 1, &trace()).encode().into_bytes()
}

/// Somebody has a key that was dropped, and signs with it a log that leaves out what came later.
#[test]
fn a_key_that_was_dropped_signs_no_page() {
    let next = LogSigner::from_seed(forged::ORIGIN, &[2; 32]).unwrap();
    let mut forge = forge().prefix(3);
    let before = forge.files().1;
    forge.begin(&signer(), &next);
    let begun = SignedRotation::sign(RotationStage::Begin, &signer(), &next, before.size, before.root).unwrap();
    let mut keys = KeyChain::new(signer().verifier_key());
    keys.follow(&begun).unwrap();
    let checkpoint = forge.files().1;
    let check = |page: &Value| {
        let checked = check_mine(&[page.to_string().into_bytes()], &keys, Held::default());
        checked.map(|report| report.signed_by).map_err(|refusal| (refusal.check(), refusal.to_string()))
    };
    let mut page = page(&forge, 0, &MINE[..2], None);
    let (name, reason) = check(&page).unwrap_err();
    let wanted = "the checkpoint of 4 entries is not signed by the key that the log has at this size";
    assert!(name == "signature" && reason.contains(wanted), "{name}: {reason}");
    page["checkpoint"] = checkpoint.sign_with(&[&signer(), &next]).unwrap().into();
    assert_eq!(check(&page), Ok(vec![signer().verifier_key(), next.verifier_key()]));
}

#[test]
fn all_of_them_are_genuine_in_one_page_and_in_many() {
    let forge = forge();
    let report = check(&[page(&forge, 0, &MINE, None)]).unwrap();
    assert_eq!((report.numbers, report.tenant, report.tenant_name.as_deref()), ((0, 6), ACME, Some("acme")));
    assert_eq!((report.kinds["opened"], report.kinds["sealed"], report.reasons["stop"]), (3, 3, 3));
    assert_eq!((report.pages, report.withheld, report.more), ([6, 0, 0], 0, false));
    // Page by page while the log grows, in whatever order they lie there.
    let pages = [
        page(&forge.prefix(5), 0, &MINE[..2], None),
        page(&forge.prefix(5), 2, &[], None),
        page(&forge.prefix(7), 2, &MINE[2..4], Some(5)),
        page(&forge, 4, &MINE[4..], Some(7)),
    ];
    let report = check(&pages).unwrap();
    assert_eq!((report.numbers, report.checkpoint.size), ((0, 6), 11));
    let mut turned = pages.to_vec();
    turned.swap(0, 3);
    assert_eq!(check(&turned).unwrap().numbers, (0, 6));
    // Of a tenant that never asked for anything.
    let nothing = page(&forge, 0, &[], None);
    assert_eq!(check(&[nothing]).unwrap().numbers, (0, 0));
    assert_eq!(check(&[]).unwrap_err(), "form");
}

#[test]
fn nothing_is_left_out_and_nothing_stands_for_another() {
    let forge = forge();
    let whole = page(&forge, 0, &MINE, None);
    for missing in 0..MINE.len() - 1 {
        let left: Vec<u64> =
            MINE.iter().copied().enumerate().filter(|(place, _)| *place != missing).map(|(_, i)| i).collect();
        assert_eq!(check(&[page(&forge, 0, &left, None)]).unwrap_err(), "numbers", "without {missing}");
    }
    assert_eq!(check(&[page(&forge, 1, &MINE[1..], None)]).unwrap_err(), "numbers", "not from the first one");
    assert_eq!(check(&[page(&forge, 0, &[1, 3], None)]).unwrap_err(), "tenant", "another tenant's in its place");
    assert_eq!(check(&[page(&forge, 0, &[0], None)]).unwrap_err(), "tenant", "nobody's in its place");
    assert_eq!(check(&[page(&forge, 0, &[1, 1], None)]).unwrap_err(), "chain", "one twice");
    let two = [page(&forge, 0, &MINE[..2], None), page(&forge, 4, &MINE[4..], None)];
    assert_eq!(check(&two).unwrap_err(), "numbers", "a page is missing");
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut page = whole.clone();
        change(&mut page);
        check(&[page]).unwrap_err()
    };
    assert_eq!(changed(&|page| page["entries"][2]["index"] = 4.into()), "inclusion");
    assert_eq!(changed(&|page| page["entries"][2]["proof"][0] = leaf_hash(b"other").to_string().into()), "inclusion");
    assert_eq!(changed(&|page| page["entries"][2]["proof"] = json!([])), "inclusion");
    assert_eq!(changed(&|page| page["entries"][2]["entry"] = page["entries"][4]["entry"].clone()), "inclusion");
    assert_eq!(changed(&|page| page["tenant"] = "globex".into()), "tenant");
    assert_eq!(changed(&|page| page["tenant_ref"] = hex::encode(GLOBEX).into()), "tenant");
    assert_eq!(
        changed(&|page| page["entries"][1]["tenant_salt"] = page["entries"][0]["tenant_salt"].clone()),
        "tenant"
    );
    assert_eq!(
        changed(&|page| page["checkpoint"] = page["checkpoint"].as_str().unwrap().replace("11", "12").into()),
        "signature"
    );
    for (name, value) in [
        ("object", json!("list")),
        ("version", json!(2)),
        ("from", json!("0")),
        ("entries", json!({})),
        ("tenant", json!(null)),
        ("tenant_ref", json!("ac")),
        ("checkpoint", json!(1)),
        ("held", json!({"size": 1})),
    ] {
        assert_eq!(changed(&|page| page[name] = value.clone()), "form", "{name}");
    }
    assert_eq!(
        changed(&|page| page["entries"][0]["leaf"] = leaf_hash(b"").to_string().into()),
        "form",
        "bytes and a hash"
    );
    assert_eq!(changed(&|page| drop(page["entries"][0].as_object_mut().unwrap().remove("entry"))), "form", "neither");
    let other = LogSigner::from_seed(forged::ORIGIN, &[7; 32]).unwrap().verifier_key();
    let refused = check_mine(&[whole.to_string().into_bytes()], &other, Held::default()).unwrap_err();
    assert_eq!(refused.check(), "signature");
}

#[test]
fn an_entry_that_does_not_continue_the_one_before_is_refused() {
    let mut forge = forge();
    let link = |number| Some(TenantLink { tenant: ACME, number, previous: Digest([9; 32]) });
    let at = forge.add_linked(link(6), forged::opened(7));
    assert_eq!(check(&[page(&forge, 0, &[&MINE[..], &[at.0]].concat(), None)]).unwrap_err(), "chain");
    // A second chain from the beginning, for whom it may concern.
    let first =
        forge.add_linked(Some(TenantLink { tenant: ACME, number: 0, previous: Digest([0; 32]) }), forged::opened(8));
    let second = forge
        .add_linked(Some(TenantLink { tenant: ACME, number: 1, previous: first.1 }), forged::sealed(8, first, |_| {}));
    let shown = page(&forge, 0, &[first.0, second.0], None);
    assert_eq!(check(std::slice::from_ref(&shown)).unwrap().numbers, (0, 2));
    let held = receipt(&forge, 1);
    let found = check_with(&[shown], Held { receipt: Some(&held), ..Held::default() });
    assert_eq!(found.unwrap_err(), "tail", "a receipt of the first chain shows it");
}

#[test]
fn what_is_withheld_is_counted_and_held_by_the_chain() {
    let forge = forge();
    let withhold = |places: &[usize], leaf: Option<usize>| {
        let mut page = page(&forge, 0, &MINE, None);
        for place in places {
            let (index, entry) = (MINE[*place] as usize, page["entries"][*place].as_object_mut().unwrap());
            entry.remove("entry");
            entry.remove("tenant_salt");
            entry.insert("leaf".into(), leaf_hash(&forge.entries[leaf.unwrap_or(index)]).to_string().into());
        }
        check(&[page])
    };
    let report = withhold(&[2], None).unwrap();
    assert_eq!((report.withheld, report.last_withheld, report.numbers), (1, false, (0, 6)));
    let report = withhold(&[4, 5], None).unwrap();
    assert_eq!((report.withheld, report.last_withheld), (2, true));
    assert_eq!(withhold(&[2], Some(3)).unwrap_err(), "inclusion");
    // Another tenant's entry as what is withheld: the next one of the chain names another.
    let mut page = page(&forge, 0, &MINE, None);
    let foreign = self::page(&forge, 0, &[3], None)["entries"][0].clone();
    let mut shown = foreign.as_object().unwrap().clone();
    shown.remove("entry");
    shown.remove("tenant_salt");
    shown.insert("leaf".into(), leaf_hash(&forge.entries[3]).to_string().into());
    page["entries"][1] = Value::Object(shown);
    assert_eq!(check(&[page]).unwrap_err(), "chain");
}

#[test]
fn pages_are_of_one_history() {
    let forge = forge();
    let (first, second) = (page(&forge.prefix(5), 0, &MINE[..2], None), page(&forge, 2, &MINE[2..], Some(5)));
    assert!(check(&[first.clone(), second.clone()]).is_ok());
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut second = second.clone();
        change(&mut second);
        check(&[first.clone(), second]).unwrap_err()
    };
    assert_eq!(changed(&|page| page["held"] = Value::Null), "consistency");
    assert_eq!(changed(&|page| page["held"]["size"] = 4.into()), "consistency");
    assert_eq!(changed(&|page| page["held"]["proof"][0] = leaf_hash(b"other").to_string().into()), "consistency");
    let back = [page(&forge, 0, &MINE[..2], None), page(&forge.prefix(7), 2, &MINE[2..4], Some(5))];
    assert_eq!(check(&back).unwrap_err(), "consistency", "an older checkpoint");
    // Two histories with the same chain of this tenant, of one size and of two.
    let mut other = Forge::new();
    other.answer(ACME, 1);
    other.answer(GLOBEX, 9);
    let fork = page(&other, 0, &MINE[..2], None);
    assert_eq!(check(&[fork.clone(), page(&forge.prefix(5), 2, &[], None)]).unwrap_err(), "fork");
    assert_eq!(check(&[fork, second]).unwrap_err(), "consistency");
}

#[test]
fn a_receipt_from_before_is_continued() {
    let forge = forge();
    let held = receipt(&forge.prefix(5), 1);
    let after = |pages: &[Value], receipt: &[u8]| check_with(pages, Held { after: Some(receipt), ..Held::default() });
    let rest = page(&forge, 2, &MINE[2..], Some(5));
    let report = after(std::slice::from_ref(&rest), &held).unwrap();
    assert_eq!((report.numbers, report.after), ((2, 6), Some(1)));
    assert_eq!(after(&[page(&forge, 4, &MINE[4..], Some(5))], &held).unwrap_err(), "numbers");
    assert_eq!(after(&[page(&forge, 2, &MINE[2..], None)], &held).unwrap_err(), "consistency");
    assert_eq!(
        after(std::slice::from_ref(&rest), &receipt(&forge.prefix(5), 3)).unwrap_err(),
        "receipt",
        "another tenant's"
    );
    assert_eq!(after(&[rest], b"nonsense").unwrap_err(), "receipt");
}

#[test]
fn a_cut_tail_shows_against_a_later_receipt() {
    let forge = forge();
    let later = |pages: &[Value], receipt: &[u8]| check_with(pages, Held { receipt: Some(receipt), ..Held::default() });
    let (whole, last) = (page(&forge, 0, &MINE, None), receipt(&forge, 9));
    assert_eq!(later(std::slice::from_ref(&whole), &last).unwrap().receipt, Some(5));
    assert_eq!(later(std::slice::from_ref(&whole), &receipt(&forge.prefix(7), 5)).unwrap().receipt, Some(3));
    // The same checkpoint, without the last two entries; and without the last one.
    for end in [4, 5] {
        assert_eq!(later(&[page(&forge, 0, &MINE[..end], None)], &last).unwrap_err(), "tail");
    }
    let refusal = |page: &Value| {
        let held = Held { receipt: Some(&last), ..Held::default() };
        check_mine(&[page.to_string().into_bytes()], &signer().verifier_key(), held).unwrap_err().to_string()
    };
    assert!(refusal(&page(&forge, 0, &MINE[..4], None)).starts_with("the tail is cut"));
    let mut honest = page(&forge, 0, &MINE[..4], None);
    honest["next"] = "/v1/isolation/mine?from=4&to=6&held=11".into();
    assert!(refusal(&honest).ends_with("ask for the next ones"));
    let older = page(&forge.prefix(7), 0, &MINE[..4], None);
    assert!(refusal(&older).ends_with("ask for them again"), "the receipt is younger than the pages");
    // Its opened entry was there already.
    assert!(refusal(&page(&forge.prefix(10), 0, &MINE[..4], None)).starts_with("the tail is cut"));
    assert_eq!(later(std::slice::from_ref(&whole), &receipt(&forge, 3)).unwrap_err(), "receipt", "another tenant's");
    let (held, rest) = (receipt(&forge.prefix(5), 1), page(&forge, 2, &MINE[2..], Some(5)));
    let both = Held { after: Some(&held), receipt: Some(&held), ..Held::default() };
    assert_eq!(check_with(&[rest], both).unwrap_err(), "receipt", "it lies before the first one");
}

#[test]
fn the_newest_checkpoint_is_the_one_that_witnesses_must_have_seen() {
    let forge = forge();
    let witness = Cosigner::from_seed("w.example", &[1; 32]).unwrap();
    let witnesses = Witnesses::new(vec![witness.verifier_key()], 1).unwrap();
    let cosigned = |page: &mut Value, size: usize| {
        let note = page["checkpoint"].as_str().unwrap().to_owned();
        let line = witness.cosign(&forge.prefix(size).files().1, 1_796_000_000).unwrap();
        page["checkpoint"] = format!("{note}{line}").into();
    };
    let held = Held { witnesses: Some(&witnesses), ..Held::default() };
    let (mut first, mut second) = (page(&forge.prefix(5), 0, &MINE[..2], None), page(&forge, 2, &MINE[2..], Some(5)));
    cosigned(&mut first, 5);
    assert_eq!(check_with(&[first.clone(), second.clone()], held).unwrap_err(), "witnesses");
    cosigned(&mut second, 11);
    assert_eq!(check_with(&[first, second], held).unwrap().witnessed.len(), 1);
}

/// The tenant of an entry is what its bytes say, in every version of the format.
#[test]
fn older_entries_are_read() {
    for version in [EntryVersion::V2, EntryVersion::V3] {
        let mut forge = Forge::of_version(version);
        forge.answer(ACME, 1);
        let tenant: TenantRef = check(&[page(&forge, 0, &[1, 2], None)]).unwrap().tenant;
        assert_eq!(tenant, ACME);
    }
}

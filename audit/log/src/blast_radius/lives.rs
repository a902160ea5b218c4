//! Which lives of pages are suspect, and who read them.

use super::{BlastRadiusError, LIVES_MAX, SHOWN_MAX, SharedLife, Suspect};
use audit_provenance::{PageRun, TenantRef};
use policies_domain::{Generation, PageId};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashSet};

/// A page and its life.
pub(crate) type Life = (u32, u32);

pub(crate) fn life(run: &PageRun) -> Life {
    (run.page.0, run.generation.0)
}

/// What is suspect of pages.
#[derive(Debug, Default)]
pub(crate) struct Lives {
    asked: Option<(u32, Option<u32>)>,
    held: HashSet<Life>,
}

impl Lives {
    pub(crate) fn of(suspect: &Suspect) -> Self {
        let asked = match suspect {
            Suspect::Page { page, generation } => Some((page.0, generation.map(|generation| generation.0))),
            _ => None,
        };
        Self { asked, held: HashSet::new() }
    }

    pub(crate) fn contains(&self, life: Life) -> bool {
        self.asked.is_some_and(|(page, generation)| page == life.0 && generation.is_none_or(|held| held == life.1))
            || self.held.contains(&life)
    }

    /// Whether one was not suspect before.
    pub(crate) fn extend(&mut self, lives: impl IntoIterator<Item = Life>) -> Result<bool, BlastRadiusError> {
        let before = self.held.len();
        for life in lives {
            if !self.contains(life) {
                self.held.insert(life);
            }
            if self.held.len() > LIVES_MAX {
                return Err(BlastRadiusError::TooManyLives);
            }
        }
        Ok(self.held.len() > before)
    }
}

/// Who read a life. Most lives have one reader, of whom nothing but that is ever asked.
#[derive(Debug)]
enum ReadBy {
    One(u64, TenantRef),
    More(Box<SharedLife>),
}

/// Who read each of them.
#[derive(Debug, Default)]
pub(crate) struct Readers(BTreeMap<Life, ReadBy>);

impl Readers {
    /// Once for each response, though its trace may name a life several times.
    pub(crate) fn note(&mut self, life: Life, index: u64, tenant: TenantRef) {
        match self.0.entry(life) {
            Entry::Vacant(entry) => drop(entry.insert(ReadBy::One(index, tenant))),
            Entry::Occupied(mut entry) => match entry.get_mut() {
                ReadBy::One(first, of) => {
                    let mut shared = shared(life, *first, *of);
                    shared.add(index, tenant);
                    *entry.get_mut() = ReadBy::More(Box::new(shared));
                }
                ReadBy::More(shared) => shared.add(index, tenant),
            },
        }
    }

    /// Those that more than one response read, or that were asked for.
    pub(crate) fn into_shared(self, suspect: &Suspect) -> Vec<SharedLife> {
        let asked = matches!(suspect, Suspect::Page { .. });
        let life = |(life, read)| match read {
            ReadBy::More(shared) => Some(*shared),
            ReadBy::One(index, tenant) => asked.then(|| shared(life, index, tenant)),
        };
        self.0.into_iter().filter_map(life).collect()
    }
}

fn shared((page, generation): Life, index: u64, tenant: TenantRef) -> SharedLife {
    let (page, generation) = (PageId(page), Generation(generation));
    SharedLife { page, generation, readers_count: 1, readers: vec![index], tenants: vec![tenant] }
}

impl SharedLife {
    fn add(&mut self, index: u64, tenant: TenantRef) {
        self.readers_count += 1;
        if self.readers.len() < SHOWN_MAX {
            self.readers.push(index);
        }
        if self.tenants.len() < SHOWN_MAX && !self.tenants.contains(&tenant) {
            self.tenants.push(tenant);
        }
    }
}

//! Whose each page was, in each of its lives, as the responses' traces say.

use audit_provenance::TenantRef;
use std::collections::{HashMap, VecDeque};

/// Lives of a page that are remembered. A response that is sealed later than so many lives began is compared with none.
const LIVES_MAX: usize = 64;
/// Starts of the gateway whose pages are remembered: requests of the one before may still be sealed by the next.
const BOOTS_MAX: usize = 2;

/// Who may read a page as its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Everybody,
    Tenant(TenantRef),
}

/// One life of a page belongs to one tenant, or to everybody.
#[derive(Debug, Default)]
pub(crate) struct PageLives {
    boots: VecDeque<([u8; 16], Pages)>,
}

/// By page: its newest lives, by generation.
type Pages = HashMap<u32, VecDeque<(u32, Owner)>>;

impl PageLives {
    /// A page was read in a life as this owner's. `false`: it was another's in that life.
    pub(crate) fn read(&mut self, boot: [u8; 16], page: u32, generation: u32, owner: Owner) -> bool {
        let lives = self.of_boot(boot).entry(page).or_default();
        if let Some((_, known)) = lives.iter().find(|(life, _)| *life == generation) {
            return *known == owner;
        }
        if lives.len() == LIVES_MAX {
            lives.pop_front();
        }
        lives.push_back((generation, owner));
        true
    }

    fn of_boot(&mut self, boot: [u8; 16]) -> &mut Pages {
        let place = self.boots.iter().position(|(known, _)| *known == boot);
        if place.is_none() {
            self.boots.truncate(BOOTS_MAX - 1);
            self.boots.push_front((boot, HashMap::new()));
        }
        &mut self.boots[place.unwrap_or(0)].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: [u8; 16] = [1; 16];

    #[test]
    fn a_life_of_a_page_has_one_owner() {
        let mut lives = PageLives::default();
        let (one, two) = (Owner::Tenant([1; 16]), Owner::Tenant([2; 16]));
        assert!(lives.read(BOOT, 7, 1, one) && lives.read(BOOT, 7, 1, one), "again by the same");
        assert!(lives.read(BOOT, 7, 2, two) && lives.read(BOOT, 8, 1, two), "another life, another page");
        assert!(lives.read([2; 16], 7, 1, two), "another start");
        assert!(
            !lives.read(BOOT, 7, 1, two) && !lives.read(BOOT, 7, 2, one) && !lives.read(BOOT, 7, 1, Owner::Everybody)
        );
        assert!(lives.read(BOOT, 9, 1, Owner::Everybody) && !lives.read(BOOT, 9, 1, one));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut lives = PageLives::default();
        for boot in 0..10 {
            for generation in 0..1_000 {
                assert!(lives.read([boot; 16], 1, generation, Owner::Everybody));
            }
        }
        assert_eq!(lives.boots.len(), BOOTS_MAX);
        assert!(lives.boots.iter().all(|(_, pages)| pages[&1].len() == LIVES_MAX));
    }
}

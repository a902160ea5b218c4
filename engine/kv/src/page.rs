//! One page through its life. Each state that has an owner is a type; a page moves and is never copied.

use crate::ledger::{Capability, Grant, PAGE_TOKENS, UseError};
use crate::pool::PagePool;
use policies_domain::{Label, Owner, PageLife, SequenceId};
use std::fmt;

/// What every owned page carries. Dropping it gives the page back: it drains and is then free.
pub(crate) struct Owned {
    pool: PagePool,
    grant: Grant,
    label: Label,
    owner: Owner,
    filled: usize,
}

impl Owned {
    pub(crate) fn new(pool: PagePool, grant: Grant, label: Label, owner: Owner) -> Self {
        Self { pool, grant, label, owner, filled: 0 }
    }

    fn sequence(&self) -> Result<SequenceId, UseError> {
        match self.owner {
            Owner::Sequence(sequence) => Ok(sequence),
            held => Err(UseError::NotOwner { page: self.grant.life().page, held, wanted: held }),
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let given_back = self.pool.lock().give_back(self.grant.life(), self.owner);
        // Whoever gives back what it does not have has lost count of its pages: the worker must not go on.
        assert!(given_back.is_ok() || std::thread::panicking(), "a page came back wrongly: {given_back:?}");
    }
}

impl fmt::Debug for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { grant, label, owner, filled, .. } = self;
        write!(f, "{}, {label}, {owner}, {filled}/{PAGE_TOKENS}", grant.life().page)
    }
}

/// What all states have in common.
macro_rules! page_state {
    ($name:ident) => {
        impl $name {
            /// What a kernel is given for this page.
            #[must_use]
            pub fn capability(&self) -> Capability {
                self.0.grant.capability()
            }

            /// Which page, in which life.
            #[must_use]
            pub fn life(&self) -> PageLife {
                self.0.grant.life()
            }

            /// Whose data it holds.
            #[must_use]
            pub fn label(&self) -> Label {
                self.0.label
            }

            /// Tokens written so far, at most [`PAGE_TOKENS`].
            #[must_use]
            pub fn filled(&self) -> usize {
                self.0.filled
            }
        }
    };
}

/// A page that its sequence is writing to.
#[derive(Debug)]
pub struct FillingPage(Owned);
page_state!(FillingPage);

impl FillingPage {
    pub(crate) fn new(owned: Owned) -> Self {
        Self(owned)
    }

    /// Takes note of `tokens` more tokens and returns how many of them still fitted.
    ///
    /// # Errors
    /// [`UseError`] when the page was put out of use.
    pub fn fill(&mut self, tokens: usize) -> Result<usize, UseError> {
        let taken = self.0.pool.lock().append(self.0.grant.life(), self.0.sequence()?, tokens)?;
        self.0.filled += taken;
        Ok(taken)
    }

    /// The page is never written again. One that is not full has to be meant: see [`FillingPage::is_full`].
    ///
    /// # Errors
    /// Hands the page back when it is empty, is being written by a ticket's holder, or was put out of use.
    pub fn seal(self) -> Result<SealedPage, (Self, UseError)> {
        let sealed = self.0.sequence().and_then(|owner| self.0.pool.lock().seal(self.0.grant.life(), owner));
        match sealed {
            Ok(()) => Ok(SealedPage(self.0)),
            Err(error) => Err((self, error)),
        }
    }

    /// No token fits any more.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.0.filled == PAGE_TOKENS
    }
}

/// A page that nobody writes to any more.
#[derive(Debug)]
pub struct SealedPage(Owned);
page_state!(SealedPage);

impl SealedPage {
    /// Other sequences of the tenant may hold it, too.
    ///
    /// # Errors
    /// Hands the page back when it is not full, or under suspicion.
    pub fn share(self) -> Result<SharedPage, (Self, UseError)> {
        let shared = self.0.sequence().and_then(|owner| self.0.pool.lock().share(self.0.grant.life(), owner));
        match shared {
            Ok(()) => Ok(SharedPage(self.0)),
            Err(error) => Err((self, error)),
        }
    }

    /// A transfer may copy it.
    ///
    /// # Errors
    /// Hands the page back when it is under suspicion.
    pub fn offer(self) -> Result<OutboundPage, (Self, UseError)> {
        let offered = self.0.sequence().and_then(|owner| self.0.pool.lock().offer(self.0.grant.life(), owner));
        match offered {
            Ok(()) => Ok(OutboundPage(self.0)),
            Err(error) => Err((self, error)),
        }
    }
}

/// One sequence's hold on a page that several may read.
#[derive(Debug)]
pub struct SharedPage(Owned);
page_state!(SharedPage);

impl SharedPage {
    /// Another sequence, cleared for `label`, holds it as well, as the next one of its pages.
    ///
    /// # Errors
    /// [`UseError`]: another tenant's page, the sequence holds it already, or it is under suspicion.
    pub fn attach(&self, label: Label, sequence: SequenceId) -> Result<Self, UseError> {
        let grant = self.0.pool.lock().attach(self.life(), label, sequence)?;
        Ok(self.held_by(sequence, grant))
    }

    /// A sequence of its own, which computes nothing, holds it as well: [`Ledger::keep`](crate::Ledger::keep).
    ///
    /// # Errors
    /// [`UseError`]: another tenant's page, or it is under suspicion.
    pub fn keep(&self, label: Label) -> Result<Self, UseError> {
        let (keeper, grant) = self.0.pool.lock().keep(self.life(), label)?;
        Ok(self.held_by(keeper, grant))
    }

    /// A sequence that is cleared for `label` could hold it.
    pub(crate) fn fits(&self, label: Label) -> bool {
        self.0.pool.lock().may_attach(self.life(), label).is_ok()
    }

    /// Nobody but keepers holds it: when the last of them lets go, it comes back.
    pub(crate) fn only_kept(&self) -> bool {
        self.0.pool.lock().only_kept(self.life().page)
    }

    fn held_by(&self, sequence: SequenceId, grant: Grant) -> Self {
        let Owned { pool, label, filled, .. } = &self.0;
        let owner = Owner::Sequence(sequence);
        Self(Owned { pool: pool.clone(), grant, label: *label, owner, filled: *filled })
    }
}

/// A page of a block table that is written completely.
#[derive(Debug)]
pub(crate) enum FullPage {
    /// Its sequence's alone.
    Sealed(SealedPage),
    /// Other sequences may hold it, too.
    Shared(SharedPage),
}

impl FullPage {
    pub(crate) fn capability(&self) -> Capability {
        match self {
            Self::Sealed(page) => page.capability(),
            Self::Shared(page) => page.capability(),
        }
    }

    pub(crate) fn label(&self) -> Label {
        match self {
            Self::Sealed(page) => page.label(),
            Self::Shared(page) => page.label(),
        }
    }

    /// Other sequences may hold it from now on, unless they may already.
    pub(crate) fn share(self) -> Result<SharedPage, (Self, UseError)> {
        match self {
            Self::Sealed(page) => page.share().map_err(|(page, error)| (Self::Sealed(page), error)),
            Self::Shared(page) => Ok(page),
        }
    }
}

/// A page that its owner offers to a transfer.
#[derive(Debug)]
pub struct OutboundPage(Owned);
page_state!(OutboundPage);

impl OutboundPage {
    /// Nobody took it: it is its owner's as before.
    ///
    /// # Errors
    /// Hands the page back when it was put out of use.
    pub fn withdraw(self) -> Result<OwnedPage, (Self, UseError)> {
        let withdrawn = self.0.sequence().and_then(|owner| self.0.pool.lock().withdraw(self.0.grant.life(), owner));
        match withdrawn {
            Ok(()) => Ok(OwnedPage::of(self.0)),
            Err(error) => Err((self, error)),
        }
    }

    /// It becomes another sequence's of this pool, in a new life, without a copy. The caller hands the new capability to
    /// the store before anybody reads.
    ///
    /// # Errors
    /// Hands the page back: [`UseError`] as for [`Ledger::commit`](crate::Ledger::commit).
    pub fn hand_over(mut self, to: SequenceId) -> Result<OwnedPage, (Self, UseError)> {
        let (life, owner, filled) = (self.0.grant.life(), self.0.owner, self.0.filled);
        let committed = self.0.pool.lock().commit(life, owner, to, filled);
        match committed {
            Ok(grant) => {
                (self.0.grant, self.0.owner) = (grant, Owner::Sequence(to));
                Ok(OwnedPage::of(self.0))
            }
            Err(error) => Err((self, error)),
        }
    }
}

/// A page that is promised to a transfer's bytes.
#[derive(Debug)]
pub struct InboundPage(Owned);
page_state!(InboundPage);

impl InboundPage {
    pub(crate) fn new(owned: Owned) -> Self {
        Self(owned)
    }

    /// What arrived was compared with what was promised: it is `to`'s, in a new life, and holds `tokens` tokens. The
    /// caller hands the new capability to the store before anybody reads.
    ///
    /// # Errors
    /// Hands the page back: [`UseError`] as for [`Ledger::commit`](crate::Ledger::commit).
    pub fn commit(mut self, to: SequenceId, tokens: usize) -> Result<OwnedPage, (Self, UseError)> {
        let (life, owner) = (self.0.grant.life(), self.0.owner);
        let committed = self.0.pool.lock().commit(life, owner, to, tokens);
        match committed {
            Ok(grant) => {
                (self.0.grant, self.0.owner, self.0.filled) = (grant, Owner::Sequence(to), tokens);
                Ok(OwnedPage::of(self.0))
            }
            Err(error) => Err((self, error)),
        }
    }
}

/// What a page is to the sequence that got it whole.
#[derive(Debug)]
pub enum OwnedPage {
    /// It has room.
    Filling(FillingPage),
    /// It is full.
    Sealed(SealedPage),
}

impl OwnedPage {
    /// What a kernel is given for this page.
    #[must_use]
    pub fn capability(&self) -> Capability {
        match self {
            Self::Filling(page) => page.capability(),
            Self::Sealed(page) => page.capability(),
        }
    }

    fn of(owned: Owned) -> Self {
        if owned.filled == PAGE_TOKENS { Self::Sealed(SealedPage(owned)) } else { Self::Filling(FillingPage(owned)) }
    }
}

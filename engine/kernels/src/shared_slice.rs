//! A slice of which several threads write different parts.

use std::marker::PhantomData;
use std::ops::Range;

/// Hands out parts of one mutable slice; that no two parts in use overlap is the caller's promise.
pub(crate) struct SharedSlice<'a, T> {
    start: *mut T,
    length: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: it stands for a `&mut [T]` whose parts go to different threads, which `T: Send` allows.
unsafe impl<T: Send> Sync for SharedSlice<'_, T> {}

impl<'a, T> SharedSlice<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), length: slice.len(), slice: PhantomData }
    }

    /// # Safety
    /// While the result is in use, no other part that overlaps `range` may be.
    ///
    /// # Panics
    /// When the range lies outside.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "the parts are disjoint by the caller's promise")]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.length, "part outside the slice");
        // SAFETY: inside the slice by the assertion, disjoint from all others by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.end - range.start) }
    }

    /// One element.
    ///
    /// # Safety
    /// As for [`SharedSlice::part`].
    #[inline(always)]
    pub(crate) unsafe fn write(&self, index: usize, value: T) {
        assert!(index < self.length, "element outside the slice");
        // SAFETY: inside the slice by the assertion, nobody else's by the caller's promise.
        unsafe { *self.start.add(index) = value };
    }
}

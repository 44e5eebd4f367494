//! Moving averages of what happens now and then.

/// What one more value counts: one part in so many.
const WEIGHT: u64 = 4;

/// One more value.
pub(crate) fn average(of: &mut u64, now: u64) {
    // Rounded away from the old value, so that it arrives.
    let step = now.abs_diff(*of).div_ceil(WEIGHT);
    *of = if now > *of { of.saturating_add(step) } else { of.saturating_sub(step) };
}

//! Medians, and the spread of a ratio over rounds.

/// The middle value; of an even number the mean of the two in the middle.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        len if len % 2 == 1 => sorted.get(middle).copied(),
        _ => Some(f64::midpoint(*sorted.get(middle - 1)?, *sorted.get(middle)?)),
    }
}

/// The smallest and the largest.
pub fn range(values: &[f64]) -> Option<(f64, f64)> {
    let least = values.iter().copied().min_by(f64::total_cmp)?;
    let most = values.iter().copied().max_by(f64::total_cmp)?;
    Some((least, most))
}

/// The value below which this share of a sorted list is.
pub fn quantile(sorted: &[u64], share: f64) -> Option<u64> {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
    let at = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(at.max(1) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(quantile(&[1, 2, 3, 4], 0.5), Some(2));
        assert_eq!(quantile(&[1, 2, 3, 4], 0.99), Some(4));
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(range(&[2.0, 1.0, 3.0]), Some((1.0, 3.0)));
    }
}

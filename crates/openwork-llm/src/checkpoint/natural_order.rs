//! Natural sort order: `layers.2` before `layers.10`.

use std::cmp::Ordering;

/// Compares two names, with runs of digits as numbers. Names that differ only in
/// leading zeros compare by bytes, so only identical names are equal.
pub(super) fn compare(a: &str, b: &str) -> Ordering {
    let (mut x, mut y) = (a.as_bytes(), b.as_bytes());
    while let (Some(&c), Some(&d)) = (x.first(), y.first()) {
        if c.is_ascii_digit() && d.is_ascii_digit() {
            let (p, q) = (number(&mut x), number(&mut y));
            // Without leading zeros, the longer number is larger.
            match p.len().cmp(&q.len()).then(p.cmp(q)) {
                Ordering::Equal => continue,
                order => return order,
            }
        }
        if c != d {
            return c.cmp(&d);
        }
        (x, y) = (&x[1..], &y[1..]);
    }
    x.len().cmp(&y.len()).then(a.cmp(b))
}

/// Removes the digits at the start of `text`; returns them without leading zeros.
fn number<'a>(text: &mut &'a [u8]) -> &'a [u8] {
    let end = text.iter().position(|c| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    *text = rest;
    let zeros = digits.iter().position(|&c| c != b'0').unwrap_or(digits.len());
    &digits[zeros..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_count() {
        let mut names = vec!["layers.10.w", "layers.2.w", "layers.2.b", "a", "layers.02.w"];
        names.sort_by(|a, b| compare(a, b));
        assert_eq!(names, ["a", "layers.2.b", "layers.02.w", "layers.2.w", "layers.10.w"]);
    }

    proptest! {
        #[test]
        fn it_is_a_total_order(names in proptest::collection::vec("[01a.]{0,5}", 3)) {
            let [a, b, c] = &names[..] else { unreachable!() };
            prop_assert_eq!(compare(a, b), compare(b, a).reverse());
            prop_assert_eq!(compare(a, b).is_eq(), a == b);
            if compare(a, b).is_le() && compare(b, c).is_le() {
                prop_assert!(compare(a, c).is_le());
            }
        }
    }
}

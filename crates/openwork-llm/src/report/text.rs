//! Numbers and texts as a page shows them.

/// `text` as it may stand in an element or in an attribute.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Line breaks are kept: tips have several lines.
            '\n' => out.push_str("&#10;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// A number with four digits that count.
pub(super) fn number(x: f64) -> String {
    if x.is_nan() {
        return "NaN".to_string();
    }
    if x.is_infinite() {
        return if x > 0.0 { "\u{221e}" } else { "-\u{221e}" }.to_string();
    }
    match x.abs() {
        0.0 => "0".to_string(),
        size if !(1e-4..1e6).contains(&size) => format!("{x:.2e}"),
        size => {
            let before = size.log10().floor() as i32;
            format!("{x:.*}", (3 - before).clamp(0, 6) as usize)
        }
    }
}

/// A number of an axis: as short as it can be.
pub(super) fn tick(x: f64) -> String {
    if x != 0.0 && !(1e-4..1e6).contains(&x.abs()) {
        return format!("{x:e}");
    }
    // Ten decimals hide that 3 * 0.1 is not 0.3.
    let text = format!("{x:.10}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_string() } else { text.to_string() }
}

/// A share as a percentage.
pub(super) fn percent(x: f64) -> String {
    if !x.is_finite() {
        return number(x);
    }
    let text = format!("{:.2}", 100.0 * x);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

/// A time in the unit that suits it.
pub(super) fn duration(seconds: f64) -> String {
    match seconds {
        s if !s.is_finite() => number(s),
        s if s < 60.0 => format!("{} s", tick((s * 100.0).round() / 100.0)),
        s if s < 3600.0 => format!("{:.0} min {:02.0} s", (s / 60.0).floor(), (s % 60.0).floor()),
        s => format!("{:.0} h {:02.0} min", (s / 3600.0).floor(), (s % 3600.0 / 60.0).floor()),
    }
}

/// Bytes in the unit that suits them.
pub(super) fn bytes(n: u64) -> String {
    const UNITS: &[(f64, &str)] = &[(1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    match UNITS.iter().find(|(unit, _)| n as f64 >= *unit) {
        Some(&(unit, name)) => format!("{:.*} {name}", usize::from(unit > 1e6), n as f64 / unit),
        None => format!("{n} B"),
    }
}

/// 1234567 as `1,234,567`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_character_leaves_its_place() {
        assert_eq!(escaped("<a b='c'>&\"\n\u{1}"), "&lt;a b=&#39;c&#39;&gt;&amp;&quot;&#10; ");
    }

    #[test]
    fn four_digits_count() {
        for (x, text) in [
            (0.0, "0"),
            (22.7512, "22.75"),
            (105.96, "106.0"),
            (0.14984, "0.1498"),
            (0.000123456, "0.000123"),
            (12345.6, "12346"),
            (1.5e9, "1.50e9"),
            (3e-7, "3.00e-7"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "\u{221e}"),
            (f64::NEG_INFINITY, "-\u{221e}"),
        ] {
            assert_eq!(number(x), text);
        }
    }

    #[test]
    fn axes_times_and_sizes_are_short() {
        assert_eq!(tick(3.0 * 0.1), "0.3");
        assert_eq!(tick(200.0), "200");
        assert_eq!(tick(-0.0), "0");
        assert_eq!(tick(1e7), "1e7");
        assert_eq!(percent(0.5), "50%");
        assert_eq!(percent(0.56251), "56.25%");
        assert_eq!(duration(1.234), "1.23 s");
        assert_eq!(duration(61.0), "1 min 01 s");
        assert_eq!(duration(7260.0), "2 h 01 min");
        assert_eq!(duration(f64::NAN), "NaN");
        assert_eq!(bytes(812), "812 B");
        assert_eq!(bytes(3_900_000_000), "3.9 GB");
        assert_eq!(bytes(84_400_000), "84 MB");
        assert_eq!(grouped(1_234_567), "1,234,567");
    }
}

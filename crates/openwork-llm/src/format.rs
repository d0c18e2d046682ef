//! Formats numbers, sizes, durations and tables for the terminal, error
//! messages and the report page, and parses sizes that users write.

/// Longest name that is printed in full, in characters.
const LONGEST_NAME: usize = 200;

/// `rows` as a table of aligned columns; `right` says which are right-aligned.
///
/// # Panics
///
/// If a row has fewer cells than there are columns.
pub fn align_columns(rows: &[impl AsRef<[String]>], right: impl AsRef<[bool]>) -> String {
    let length = |column: usize| rows.iter().map(move |row| row.as_ref()[column].chars().count());
    let columns: Vec<(bool, usize)> = (right.as_ref().iter().enumerate())
        .map(|(column, &right)| (right, length(column).max().unwrap_or(0)))
        .collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, &(right, width)) in row.as_ref().iter().zip(&columns) {
            let pad = " ".repeat(width - cell.chars().count());
            let (left, after) = if right { (pad, String::new()) } else { (String::new(), pad) };
            line += &format!("{left}{cell}{after}  ");
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// `text` from a file, safe to print on a terminal: control characters are
/// escaped, and everything after the first 200 characters is cut.
pub fn printable(text: &str) -> String {
    let mut plain = String::new();
    for (i, c) in text.chars().enumerate() {
        match c {
            _ if i == LONGEST_NAME => return plain + "..",
            c if c.is_control() => plain.extend(c.escape_default()),
            c => plain.push(c),
        }
    }
    plain
}

/// A number of things: `1 window`, `2,048 windows`.
pub fn count(n: usize, noun: &str) -> String {
    let s = if n == 1 { "" } else { "s" };
    format!("{} {noun}{s}", grouped(n as u64))
}

/// Calibration windows: `64 windows of 256 tokens and 1,024 single tokens`.
pub fn windows(samples: usize, length: usize, single_tokens: usize) -> String {
    let mut text = format!("{} of {}", count(samples, "window"), count(length, "token"));
    if single_tokens > 0 {
        text += &format!(" and {}", count(single_tokens, "single token"));
    }
    text
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

/// A size in bytes: `812 B`, `98.4 MB`.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: &[(u64, &str)] = &[(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
        Some(&(unit, name)) => format!("{:.1} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} B"),
    }
}

/// Parses a size: `4G`, `512M`, `1.5GiB` or a plain number of bytes. Sizes
/// below one byte or beyond 64 bits are `None`.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale: f64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "t" | "tb" => 1e12,
        "kib" => 1024.0,
        "mib" => 1048576.0,
        "gib" => 1073741824.0,
        _ => return None,
    };
    let bytes = number.parse::<f64>().ok()? * scale;
    // `u64::MAX as f64` rounds up to 2^64, the first value that does not fit.
    (1.0..u64::MAX as f64).contains(&bytes).then_some(bytes as u64)
}

/// A duration with about three significant digits: `4.2 ms`, `1.23 s`,
/// `5 min 12 s`, `2 h 01 min`.
pub fn format_seconds(seconds: f64) -> String {
    // Each limit is where the shorter form would round up into the next unit.
    match seconds {
        s if !s.is_finite() => number(s),
        0.0 => "0 s".to_string(),
        s if s < 0.09995 => format!("{:.1} ms", 1e3 * s),
        s if s < 9.995 => format!("{s:.2} s"),
        s if s < 59.95 => format!("{s:.1} s"),
        s if s < 3599.5 => in_two_units(s, ("min", 60), ("s", 1)),
        s => in_two_units(s, ("h", 3600), ("min", 60)),
    }
}

/// An estimated duration, rounded to what an estimate can promise: `12 s`,
/// `5 min`, `2.1 h`.
pub fn format_estimate(seconds: f64) -> String {
    match seconds {
        s if !s.is_finite() => number(s),
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

fn in_two_units(seconds: f64, large: (&str, u64), small: (&str, u64)) -> String {
    let whole = (seconds / small.1 as f64).round() as u64;
    let ratio = large.1 / small.1;
    format!("{} {} {:02} {}", whole / ratio, large.0, whole % ratio, small.0)
}

/// A number with four significant digits.
pub fn number(x: f64) -> String {
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

/// The label of an axis tick: the shortest decimal.
pub fn tick(x: f64) -> String {
    if x != 0.0 && !(1e-4..1e6).contains(&x.abs()) {
        return format!("{x:e}");
    }
    // Ten decimals hide that 3 * 0.1 is not 0.3.
    let text = format!("{x:.10}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_string() } else { text.to_string() }
}

/// A fraction as a percentage: `56.25%`.
pub fn percent(x: f64) -> String {
    if !x.is_finite() {
        return number(x);
    }
    let text = format!("{:.2}", 100.0 * x);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

/// A word as a shell reads it back.
///
/// ```
/// use openwork_llm::format::shell_word;
/// assert_eq!(shell_word("--spec=2:4"), "--spec=2:4");
/// assert_eq!(shell_word("it's"), r"'it'\''s'");
/// ```
pub fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,%+@".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_string(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_steer_a_terminal_or_fill_it() {
        assert_eq!(printable("a \"b\" \u{e9}"), "a \"b\" \u{e9}");
        assert_eq!(printable("a\u{1b}[31m\n"), "a\\u{1b}[31m\\n");
        assert_eq!(printable(&"x".repeat(200)), "x".repeat(200));
        assert_eq!(printable(&"x".repeat(9999)), format!("{}..", "x".repeat(200)));
    }

    #[test]
    fn sizes_are_read_in_the_usual_units() {
        assert_eq!(parse_bytes("4G"), Some(4_000_000_000));
        assert_eq!(parse_bytes("1.5 GiB"), Some(1_610_612_736));
        assert_eq!(parse_bytes("12345"), Some(12_345));
        for wrong in ["", "G", "4X", "-1", "0", "nan", "1e400", "99999999999999999999G"] {
            assert_eq!(parse_bytes(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn one_thing_is_singular() {
        assert_eq!(count(0, "window"), "0 windows");
        assert_eq!(count(1, "window"), "1 window");
        assert_eq!(count(2048, "token"), "2,048 tokens");
        assert_eq!(windows(1, 256, 0), "1 window of 256 tokens");
        assert_eq!(windows(2, 1, 1), "2 windows of 1 token and 1 single token");
    }

    #[test]
    fn numbers_have_four_significant_digits() {
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
    fn durations_round_into_the_next_unit() {
        for (seconds, text) in [
            (0.0, "0 s"),
            (0.0042, "4.2 ms"),
            (0.0999, "99.9 ms"),
            (0.09996, "0.10 s"),
            (1.234, "1.23 s"),
            (9.996, "10.0 s"),
            (59.94, "59.9 s"),
            (59.96, "1 min 00 s"),
            (61.0, "1 min 01 s"),
            (3599.4, "59 min 59 s"),
            (3599.6, "1 h 00 min"),
            (7260.0, "2 h 01 min"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(format_seconds(seconds), text);
        }
    }

    #[test]
    fn estimates_are_rounded() {
        assert_eq!(format_estimate(7.77), "8 s");
        assert_eq!(format_estimate(312.0), "5 min");
        assert_eq!(format_estimate(7560.0), "2.1 h");
    }

    #[test]
    fn axes_and_sizes_are_short() {
        assert_eq!(tick(3.0 * 0.1), "0.3");
        assert_eq!(tick(200.0), "200");
        assert_eq!(tick(-0.0), "0");
        assert_eq!(tick(1e7), "1e7");
        assert_eq!(percent(0.5), "50%");
        assert_eq!(percent(0.56251), "56.25%");
        assert_eq!(format_bytes(812), "812 B");
        assert_eq!(format_bytes(98_362_432), "98.4 MB");
        assert_eq!(format_bytes(3_900_000_000), "3.9 GB");
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
    }
}

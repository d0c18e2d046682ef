//! Tables and figures as a person reads and writes them.

/// Characters of a name that are shown; longer ones are cut.
const SHOWN: usize = 200;

/// Rows as aligned columns; `right` says which are aligned to the right.
pub fn columns<const N: usize>(rows: &[[String; N]], right: [bool; N]) -> String {
    let width: [usize; N] = std::array::from_fn(|column| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
    });
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let pad = " ".repeat(width[column] - cell.chars().count());
            let (left, after) =
                if right[column] { (pad, String::new()) } else { (String::new(), pad) };
            line += &format!("{left}{cell}{after}  ");
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Text from a file as a terminal can show it: nothing that would steer it, and
/// no more than the first 200 characters.
pub fn shown(text: &str) -> String {
    let mut plain = String::new();
    for (i, c) in text.chars().enumerate() {
        match c {
            _ if i == SHOWN => return plain + "..",
            c if c.is_control() => plain.extend(c.escape_default()),
            c => plain.push(c),
        }
    }
    plain
}

/// Of single tokens beside windows, if there are any.
pub fn beside(starts: usize) -> String {
    if starts == 0 { String::new() } else { format!(" and {starts} single tokens") }
}

/// Bytes in a unit that leaves at most four digits before the point.
pub fn size(bytes: u64) -> String {
    const UNITS: &[(u64, &str)] = &[(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
        Some(&(unit, name)) => format!("{:.1} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} B"),
    }
}

/// Seconds as a person says them.
pub fn time(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// The bytes that `4G`, `512M`, `1.5GiB` or a plain number mean.
pub fn bytes(text: &str) -> Option<u64> {
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
    (bytes.is_finite() && bytes >= 1.0).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::{bytes, shown};

    #[test]
    fn names_cannot_steer_a_terminal_or_fill_it() {
        assert_eq!(shown("a \"b\" \u{e9}"), "a \"b\" \u{e9}");
        assert_eq!(shown("a\u{1b}[31m\n"), "a\\u{1b}[31m\\n");
        assert_eq!(shown(&"x".repeat(200)), "x".repeat(200));
        assert_eq!(shown(&"x".repeat(9999)), format!("{}..", "x".repeat(200)));
    }

    #[test]
    fn sizes_are_read_in_the_usual_units() {
        assert_eq!(bytes("4G"), Some(4_000_000_000));
        assert_eq!(bytes("1.5 GiB"), Some(1_610_612_736));
        assert_eq!(bytes("12345"), Some(12_345));
        for wrong in ["", "G", "4X", "-1", "0", "nan", "1e400"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }
}

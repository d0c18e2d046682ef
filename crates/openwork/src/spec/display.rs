//! Prints patterns; `parse` reads what `Display` prints.

use super::pattern::{
    Arg, Atom, Axes, Body, Call, Couple, Decimal, Domain, Expr, Inner, Keep, Kind, Layout, Level,
    Member, Name, One, Operand, Pattern, Tuple, View,
};
use std::fmt;

/// Joins `items` with `between`.
fn list<T: fmt::Display>(f: &mut fmt::Formatter<'_>, items: &[T], between: &str) -> fmt::Result {
    for (i, item) in items.iter().enumerate() {
        write!(f, "{}{item}", if i == 0 { "" } else { between })?;
    }
    Ok(())
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.body {
            Body::Levels(level) => level.fmt(f),
            Body::Couple(couple) => couple.fmt(f),
        }
    }
}

impl fmt::Display for Level {
    /// An inner spec with levels of its own stands in parentheses, except in a chain of
    /// `then` without `else`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let grouped = |inner: &Inner, grouped: bool| match grouped {
            true => format!("({})", inner.level),
            false => inner.level.to_string(),
        };
        self.one.fmt(f)?;
        if let Some(then) = &self.then {
            let open = self.otherwise.is_none() && !then.level.has_else();
            write!(f, " then {}", grouped(then, then.level.has_inner() && !open))?;
        }
        if let Some(otherwise) = &self.otherwise {
            write!(f, " else {}", grouped(otherwise, otherwise.level.has_inner()))?;
        }
        Ok(())
    }
}

impl fmt::Display for Couple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Kind::Blocks => "blocks ",
            Kind::Scopes => "scopes ",
        })?;
        list(f, &self.members, " & ")?;
        if let Some(scope) = &self.scope {
            write!(f, " scope {scope}")?;
        }
        if let Some(keep) = &self.keep {
            write!(f, " keep {keep}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some((perm, _)) = &self.perm {
            f.write_str(" perm (")?;
            list(f, perm, ",")?;
            f.write_str(")")?;
        }
        if let Some(weight) = &self.weight {
            write!(f, " weight {weight}")?;
        }
        let one = self.one.to_string();
        if one.is_empty() { f.write_str(":") } else { write!(f, ": {one}") }
    }
}

impl fmt::Display for One {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        parts.extend(self.preset.as_ref().map(ToString::to_string));
        let clauses = &self.clauses;
        parts.extend(clauses.on.as_ref().map(|(names, _)| format!("on ({})", names.join(","))));
        parts.extend(clauses.domain.as_ref().map(|domain| format!("in {domain}")));
        parts.extend(clauses.pad.as_ref().map(|pad| format!("pad {pad}")));
        parts.extend(clauses.view.as_ref().map(|view| format!("view {view}")));
        parts.extend(clauses.block.as_ref().map(|block| format!("block {block}")));
        parts.extend(clauses.scope.as_ref().map(|scope| format!("scope {scope}")));
        parts.extend(clauses.keep.as_ref().map(|keep| format!("keep {keep}")));
        f.write_str(&parts.join(" "))
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Name::Ratio { n, m, b, d } => {
                write!(f, "{n}:{m}")?;
                b.map_or(Ok(()), |b| write!(f, "x{b}"))?;
                d.map_or(Ok(()), |d| write!(f, "@{d}"))
            }
            Name::Word { word, args } if args.is_empty() => f.write_str(word),
            Name::Word { word, args } => {
                write!(f, "{word}(")?;
                list(f, args, ",")?;
                f.write_str(")")
            }
        }
    }
}

impl fmt::Display for Arg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keep(keep) => keep.fmt(f),
            Self::Named(name, value) => write!(f, "{name}={value}"),
        }
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Box { offset, extent, .. } => {
                f.write_str("(")?;
                list(f, offset, ",")?;
                write!(f, ")+{extent}")
            }
            Self::Layout { layout, start, .. } => {
                write!(f, "{layout}")?;
                start.as_ref().map_or(Ok(()), |start| write!(f, "@{start}"))
            }
            Self::Union(parts) => list(f, parts, " | "),
            Self::Complement(inner) => match **inner {
                Self::Union(_) => write!(f, "~({inner})"),
                _ => write!(f, "~{inner}"),
            },
        }
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.first.fmt(f)?;
        self.rest.iter().try_for_each(|(operand, _)| write!(f, " o {operand}"))
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layout(layout) => layout.fmt(f),
            Self::Axes(axes) => axes.fmt(f),
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.shape)?;
        self.stride.as_ref().map_or(Ok(()), |stride| write!(f, ":{stride}"))
    }
}

impl fmt::Display for Axes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, group) in self.left.iter().enumerate() {
            let names: Vec<_> = group.iter().map(|(name, _)| name.as_str()).collect();
            let gap = if i == 0 { "" } else { " " };
            match names.as_slice() {
                [name] => write!(f, "{gap}{name}")?,
                names => write!(f, "{gap}({})", names.join(" "))?,
            }
        }
        f.write_str(" ->")?;
        for (name, _) in &self.right {
            write!(f, " {name}")?;
        }
        for (i, (name, size, _)) in self.sizes.iter().enumerate() {
            write!(f, "{}{name}={size}", if i == 0 { ", " } else { " " })?;
        }
        Ok(())
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(expr) => expr.fmt(f),
            Self::Share(expr) => write!(f, "{expr}%"),
            Self::All => f.write_str("all"),
            Self::Percent { digits, scale, .. } => {
                write!(f, "{}%", Decimal { digits: *digits, scale: *scale })
            }
        }
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scale = self.scale as usize;
        let digits = format!("{:0width$}", self.digits, width = scale + 1);
        let (whole, part) = digits.split_at(digits.len() - scale);
        write!(f, "{whole}{}{part}", if part.is_empty() { "" } else { "." })
    }
}

impl fmt::Display for Tuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leaf(expr) => expr.fmt(f),
            Self::List(items, _) => {
                f.write_str("(")?;
                list(f, items, ",")?;
                f.write_str(")")
            }
        }
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.first.fmt(f)?;
        for (multiplies, atom) in &self.rest {
            write!(f, "{}{atom}", if *multiplies { '*' } else { '/' })?;
        }
        Ok(())
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(n) => n.fmt(f),
            Self::Name(name) => name.fmt(f),
            Self::Whole => f.write_str("_"),
        }
    }
}

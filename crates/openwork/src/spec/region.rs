//! Evaluates the `in` clause to offsets of a tensor.

use super::axes::layout;
use super::domain::{Region, Runs, RunsError};
use super::env::{Bound, Env, shape_text};
use super::pattern::Domain;
use super::profile::{extents, whole};
use super::view::{row_major, strided};

/// The maximum number of contiguous runs of all parts of a domain together (a fraction of a
/// second).
const MAX_RUNS: usize = 1 << 22;

/// The offsets of a domain of a tensor with `size` elements.
pub(crate) fn region(domain: &Domain, dims: &[usize], size: usize, env: &Env<'_>) -> Bound<Region> {
    part(domain, dims, size, &mut { MAX_RUNS }, env)
}

/// The offsets of a part; `left` is the number of runs it may still use.
fn part(
    domain: &Domain,
    dims: &[usize],
    size: usize,
    left: &mut usize,
    env: &Env<'_>,
) -> Bound<Region> {
    match domain {
        Domain::Box { offset, extent, at } => {
            if offset.len() != dims.len() {
                let what = format!(
                    "the box's offset has {} axes, the tensor {}",
                    offset.len(),
                    dims.len()
                );
                return Err(env.error(at.0, what, format!("the tensor is {}", shape_text(dims))));
            }
            let all = row_major(dims);
            let extents = extents(extent, all.shape(), false, "box", env)?;
            let stride = whole(all.stride());
            let mut first = 0;
            for (axis, expr) in offset.iter().enumerate() {
                let start = env.eval(expr, Some(dims[axis]))?;
                if extents[axis] == 0 {
                    return Err(env.error(
                        extent.at(),
                        "the box is empty",
                        format!("axis {axis} has extent 0"),
                    ));
                }
                if start.saturating_add(extents[axis]) > dims[axis] {
                    let detail = format!(
                        "axis {axis} has {} entries, the box ends at {}",
                        dims[axis],
                        start.saturating_add(extents[axis])
                    );
                    return Err(env.error(expr.at.0, "the box exceeds the tensor", detail));
                }
                first += start * stride[axis];
            }
            let layout = strided(extents.into_iter().collect(), Some(all.stride().clone()));
            Ok(Region::Strided { first, layout })
        }
        Domain::Layout { layout: written, start, at } => {
            let layout = layout(written, dims, env)?;
            let first = start.as_ref().map_or(Ok(0), |start| env.eval(start, None))?;
            let reach = layout.cosize() as usize - 1;
            if first.saturating_add(reach) >= size {
                let detail = format!(
                    "it reaches offset {}, the tensor has {size}",
                    first.saturating_add(reach)
                );
                return Err(env.error(at.0, "the domain exceeds the tensor", detail));
            }
            let interleaves = !layout.is_nested();
            let region = Region::Strided { first, layout };
            if interleaves {
                runs(&region, at.0, left, env)?;
            }
            Ok(region)
        }
        Domain::Union(parts) => {
            let mut sets = Vec::with_capacity(parts.len());
            for part in parts {
                sets.push(runs(&self::part(part, dims, size, left, env)?, part.at(), left, env)?);
            }
            Ok(Region::Set(Runs::union(&sets)))
        }
        Domain::Complement(inner) => {
            let inner = runs(&part(inner, dims, size, left, env)?, inner.at(), left, env)?;
            Ok(Region::Set(inner.complement(size)))
        }
    }
}

fn runs(region: &Region, at: usize, left: &mut usize, env: &Env<'_>) -> Bound<Runs> {
    let scattered = |n: usize| {
        let detail = format!("it has {n} contiguous runs; at most {MAX_RUNS} in all");
        env.error(at, "the domain is too scattered", detail)
    };
    let runs = region.runs().map_err(|error| match error {
        RunsError::TooMany(n) => scattered(n),
        RunsError::Twice(offset) => {
            env.error(at, "the domain overlaps itself", format!("offset {offset} is visited twice"))
        }
    })?;
    *left = left.checked_sub(runs.runs()).ok_or_else(|| scattered(runs.runs()))?;
    Ok(runs)
}

//! Evaluates the `keep` clause.

use super::env::{Bound, Env};
use super::pattern::Keep;

/// The number of kept blocks of a scope.
pub(crate) fn keep(keep: Option<&Keep>, blocks: usize, env: &Env<'_>) -> Bound<usize> {
    let Some(keep) = keep else {
        let detail = "add for example `keep 2` or `keep 50%`";
        return Err(env.error(env.end, "the pattern does not say how much to keep", detail));
    };
    let (kept, at) = match keep {
        Keep::All => return Ok(blocks),
        Keep::Count(expr) => {
            let kept = env.eval(expr, Some(blocks))?;
            if kept == 0 && expr.literal() != Some(0) {
                let detail = "write `keep 0` to drop every block";
                return Err(env.error(expr.at.0, format!("{expr} comes to 0 blocks"), detail));
            }
            (kept, expr.at.0)
        }
        Keep::Percent { digits, scale, at } => {
            (share(u128::from(*digits), 10u128.pow(*scale), blocks, at.0, keep, env)?, at.0)
        }
        Keep::Share(expr) => {
            (share(env.eval(expr, None)? as u128, 1, blocks, expr.at.0, keep, env)?, expr.at.0)
        }
    };
    if kept > blocks {
        let detail = format!("a scope has {blocks} blocks");
        return Err(env.error(at, format!("keep {keep} is more than there are"), detail));
    }
    Ok(kept)
}

/// `digits / scale` percent of `blocks`, rounded up.
fn share(
    digits: u128,
    scale: u128,
    blocks: usize,
    at: usize,
    keep: &Keep,
    env: &Env<'_>,
) -> Bound<usize> {
    if digits == 0 {
        return Err(env.error(at, "keep 0% keeps nothing", "write `keep 0` to drop every block"));
    }
    if digits > 100 * scale {
        return Err(env.error(at, format!("keep {keep} is more than there are"), "at most 100%"));
    }
    Ok((blocks as u128 * digits).div_ceil(100 * scale) as usize)
}

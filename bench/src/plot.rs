//! A log-log plot of points with the power law through them, as SVG.

/// y = c x^p through the points, by least squares of the logarithms: (c, p).
pub fn power_law(points: &[(f64, f64)]) -> (f64, f64) {
    let n = points.len() as f64;
    let logs = || points.iter().map(|(x, y)| (x.ln(), y.ln()));
    let (mx, my) = (logs().map(|p| p.0).sum::<f64>() / n, logs().map(|p| p.1).sum::<f64>() / n);
    let over: f64 = logs().map(|(x, y)| (x - mx) * (y - my)).sum();
    let under: f64 = logs().map(|(x, _)| (x - mx) * (x - mx)).sum();
    let p = over / under;
    ((my - p * mx).exp(), p)
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 420.0;
const MARGIN: f64 = 64.0;

/// The plot.
pub fn svg(title: &str, x_name: &str, y_name: &str, points: &[(f64, f64)]) -> String {
    let (c, p) = power_law(points);
    let bound = |axis: &dyn Fn(&(f64, f64)) -> f64, pick: fn(f64, f64) -> f64, start: f64| {
        points.iter().map(axis).fold(start, pick)
    };
    let (left, right) = (bound(&|q| q.0, f64::min, f64::MAX), bound(&|q| q.0, f64::max, f64::MIN));
    let low = bound(&|q| q.1, f64::min, f64::MAX).log10().floor();
    let high = bound(&|q| q.1, f64::max, f64::MIN).log10().ceil();
    let at_x = |x: f64| MARGIN + (WIDTH - 2.0 * MARGIN) * (x / left).ln() / (right / left).ln();
    let at_y =
        |y: f64| HEIGHT - MARGIN - (HEIGHT - 2.0 * MARGIN) * (y.log10() - low) / (high - low);
    let mut body = String::new();
    for decade in low as i32..=high as i32 {
        let y = at_y(10f64.powi(decade));
        body += &format!(
            "<line x1='{MARGIN}' x2='{}' y1='{y:.1}' y2='{y:.1}' stroke='#ddd'/>\
             <text x='{}' y='{:.1}' text-anchor='end'>{}</text>\n",
            WIDTH - MARGIN,
            MARGIN - 8.0,
            y + 4.0,
            10f64.powi(decade)
        );
    }
    for (x, y) in points {
        body += &format!(
            "<circle cx='{:.1}' cy='{:.1}' r='4' fill='#1663a6'/>\
             <text x='{:.1}' y='{}' text-anchor='middle'>{x}</text>\n",
            at_x(*x),
            at_y(*y),
            at_x(*x),
            HEIGHT - MARGIN + 18.0
        );
    }
    let law = |x: f64| at_y(c * x.powf(p)).clamp(0.0, HEIGHT);
    body += &format!(
        "<line x1='{:.1}' y1='{:.1}' x2='{:.1}' y2='{:.1}' stroke='#c0392b' stroke-dasharray='5 4'/>\n",
        at_x(left),
        law(left),
        at_x(right),
        law(right)
    );
    body += &format!(
        "<text x='{}' y='28' text-anchor='middle' font-size='16'>{title}: grows as {x_name}^{p:.2}</text>\
         <text x='{}' y='{}' text-anchor='middle'>{x_name}</text>\
         <text x='16' y='{}' text-anchor='middle' transform='rotate(-90 16 {})'>{y_name}</text>\n",
        WIDTH / 2.0,
        WIDTH / 2.0,
        HEIGHT - 16.0,
        HEIGHT / 2.0,
        HEIGHT / 2.0
    );
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' \
         font-family='sans-serif' font-size='12'>\n\
         <rect width='100%' height='100%' fill='white'/>\n{body}</svg>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fit_of_a_power_law_is_that_law() {
        let points: Vec<_> = [2.0, 3.0, 7.0].iter().map(|&x: &f64| (x, 5.0 * x.powi(3))).collect();
        let (c, p) = power_law(&points);
        assert!((c - 5.0).abs() < 1e-9 && (p - 3.0).abs() < 1e-9, "{c} {p}");
        assert!(svg("t", "K", "ms", &points).contains("grows as K^3.00"));
    }
}

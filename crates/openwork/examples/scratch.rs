use openwork::{
    Matrix, Pattern,
    hessian::Hessian,
    prune::{Recipe, Task, prune},
};
fn read<const N: usize>(p: &str) -> Vec<[u8; N]> {
    std::fs::read(p).unwrap().chunks(N).map(|c| c.try_into().unwrap()).collect()
}
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let rows: usize = a[2].parse().unwrap();
    let w: Vec<f32> =
        read::<4>(&format!("/tmp/raw/{}.w", a[1])).into_iter().map(f32::from_le_bytes).collect();
    let h: Vec<f64> =
        read::<8>(&format!("/tmp/raw/{}.h", a[1])).into_iter().map(f64::from_le_bytes).collect();
    let k = h.len().isqrt();
    let rows = if rows == 0 { w.len() / k } else { rows };
    let w = &w[..rows * k];
    let h = Hessian::from_matrix(Matrix::from_vec(k, k, h), None).unwrap();
    let spec = a[3].parse::<Pattern>().unwrap().bind(&[rows, k]).unwrap();
    for m in &a[4..] {
        let r: Recipe = m.parse().unwrap();
        let t = std::time::Instant::now();
        let p = prune(&r, &Task::one(&spec, w, Some(&h))).unwrap();
        let s = t.elapsed().as_secs_f64();
        println!(
            "{} {} {m}: error {:.5} {:.3} s  {:.3} ms/row {:?}",
            a[1],
            a[3],
            p.error,
            s,
            s / rows as f64 * 1e3,
            p.notes
        );
    }
}

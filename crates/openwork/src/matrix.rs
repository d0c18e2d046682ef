//! A row-major matrix and borrowed, possibly transposed, views of one.

/// A row-major matrix that owns its entries.
///
/// ```
/// use openwork::Matrix;
/// let a = Matrix::from_fn(2, 3, |i, j| (3 * i + j) as f32);
/// assert_eq!(a.row(1), [3.0, 4.0, 5.0]);
/// assert_eq!(a.view().t().at(2, 1), 5.0);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix<T = f32> {
    rows: usize,
    cols: usize,
    /// Exactly `rows * cols` entries, row-major.
    data: Vec<T>,
}

impl<T: Copy + Default> Matrix<T> {
    /// A matrix of zeros.
    pub fn zeros(rows: usize, cols: usize) -> Self {
        Self { rows, cols, data: vec![T::default(); rows * cols] }
    }

    /// The matrix whose entry in row `i` and column `j` is `f(i, j)`.
    pub fn from_fn(rows: usize, cols: usize, mut f: impl FnMut(usize, usize) -> T) -> Self {
        let mut data = Vec::with_capacity(rows * cols);
        for i in 0..rows {
            data.extend((0..cols).map(|j| f(i, j)));
        }
        Self { rows, cols, data }
    }

    /// A matrix over entries that are already in row-major order.
    ///
    /// # Panics
    ///
    /// If `data` does not hold `rows * cols` entries.
    pub fn from_vec(rows: usize, cols: usize, data: Vec<T>) -> Self {
        assert_eq!(
            data.len(),
            rows * cols,
            "a {rows} x {cols} matrix needs {} entries",
            rows * cols
        );
        Self { rows, cols, data }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// All entries, row-major.
    pub fn data(&self) -> &[T] {
        &self.data
    }

    /// All entries, row-major.
    pub fn into_vec(self) -> Vec<T> {
        self.data
    }

    /// All entries, row-major.
    pub fn data_mut(&mut self) -> &mut [T] {
        &mut self.data
    }

    /// The row-major entries without their shape.
    pub fn into_data(self) -> Vec<T> {
        self.data
    }

    /// Row `i`.
    pub fn row(&self, i: usize) -> &[T] {
        &self.data[i * self.cols..][..self.cols]
    }

    /// Row `i`.
    pub fn row_mut(&mut self, i: usize) -> &mut [T] {
        &mut self.data[i * self.cols..][..self.cols]
    }

    /// The whole matrix, borrowed.
    pub fn view(&self) -> MatrixRef<'_, T> {
        MatrixRef::new(&self.data, self.rows, self.cols)
    }

    /// The whole matrix, mutably borrowed.
    pub fn view_mut(&mut self) -> MatrixMut<'_, T> {
        MatrixMut::new(&mut self.data, self.rows, self.cols)
    }
}

/// A borrowed matrix with strides, so that a transpose is free.
///
/// Holds: every `(i, j)` with `i < rows`, `j < cols` has
/// `i * row_stride + j * col_stride < data.len()`.
#[derive(Clone, Copy, Debug)]
pub struct MatrixRef<'a, T = f32> {
    data: &'a [T],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a, T: Copy> MatrixRef<'a, T> {
    /// A contiguous row-major matrix.
    ///
    /// # Panics
    ///
    /// If `data` does not hold `rows * cols` entries.
    pub fn new(data: &'a [T], rows: usize, cols: usize) -> Self {
        assert_eq!(
            data.len(),
            rows * cols,
            "a {rows} x {cols} matrix needs {} entries",
            rows * cols
        );
        Self { data, rows, cols, row_stride: cols, col_stride: 1 }
    }

    /// A matrix whose rows start `row_stride` entries apart and whose columns
    /// are `col_stride` entries apart.
    ///
    /// # Panics
    ///
    /// If an entry would lie beyond `data`.
    pub fn with_strides(
        data: &'a [T],
        rows: usize,
        cols: usize,
        row_stride: usize,
        col_stride: usize,
    ) -> Self {
        assert!(
            fits(data.len(), rows, cols, row_stride, col_stride),
            "a strided matrix leaves its storage"
        );
        Self { data, rows, cols, row_stride, col_stride }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Distance between rows and between columns, in entries.
    pub fn strides(&self) -> (usize, usize) {
        (self.row_stride, self.col_stride)
    }

    /// The slice from the first entry on.
    pub fn data(&self) -> &'a [T] {
        self.data
    }

    /// The entry in row `i` and column `j`.
    pub fn at(&self, i: usize, j: usize) -> T {
        self.data[i * self.row_stride + j * self.col_stride]
    }

    /// The transpose, without copying.
    pub fn t(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }

    /// Rows `start .. start + rows` and columns `left .. left + cols`.
    ///
    /// # Panics
    ///
    /// If the submatrix is not inside the matrix.
    pub fn part(self, start: usize, rows: usize, left: usize, cols: usize) -> Self {
        assert!(
            start + rows <= self.rows && left + cols <= self.cols,
            "a part lies outside its matrix"
        );
        let first = (start * self.row_stride + left * self.col_stride).min(self.data.len());
        Self { data: &self.data[first..], rows, cols, ..self }
    }

    /// Row `i`, if rows are contiguous.
    ///
    /// # Panics
    ///
    /// If columns are not adjacent in memory.
    pub fn row(&self, i: usize) -> &'a [T] {
        assert_eq!(self.col_stride, 1, "this matrix has no contiguous rows");
        &self.data[i * self.row_stride..][..self.cols]
    }
}

/// A mutably borrowed matrix, with the invariant of [`MatrixRef`], and distinct
/// entries have distinct places.
#[derive(Debug)]
pub struct MatrixMut<'a, T = f32> {
    data: &'a mut [T],
    rows: usize,
    cols: usize,
    row_stride: usize,
}

impl<T: Copy + Default> MatrixRef<'_, T> {
    /// A row-major copy; that of a transpose is transposed.
    ///
    /// ```
    /// use openwork::Matrix;
    /// let a = Matrix::from_vec(1, 3, vec![1.0, 2.0, 3.0]);
    /// assert_eq!(a.view().t().to_matrix(), Matrix::from_vec(3, 1, vec![1.0, 2.0, 3.0]));
    /// ```
    pub fn to_matrix(self) -> Matrix<T> {
        let mut copy = Matrix::zeros(self.rows, self.cols);
        copy.view_mut().copy_from(self);
        copy
    }
}

impl<'a, T: Copy> MatrixMut<'a, T> {
    /// A contiguous row-major matrix.
    ///
    /// # Panics
    ///
    /// If `data` does not hold `rows * cols` entries.
    pub fn new(data: &'a mut [T], rows: usize, cols: usize) -> Self {
        assert_eq!(
            data.len(),
            rows * cols,
            "a {rows} x {cols} matrix needs {} entries",
            rows * cols
        );
        Self { data, rows, cols, row_stride: cols }
    }

    /// A row-major matrix whose rows start `row_stride >= cols` entries apart.
    ///
    /// # Panics
    ///
    /// If rows would overlap or an entry would lie beyond `data`.
    pub fn with_stride(data: &'a mut [T], rows: usize, cols: usize, row_stride: usize) -> Self {
        assert!(row_stride >= cols || rows <= 1, "rows overlap");
        assert!(fits(data.len(), rows, cols, row_stride, 1), "a strided matrix leaves its storage");
        Self { data, rows, cols, row_stride }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Distance between rows, in entries.
    pub fn row_stride(&self) -> usize {
        self.row_stride
    }

    /// The slice from the first entry on.
    pub fn data_mut(&mut self) -> &mut [T] {
        self.data
    }

    /// Row `i`.
    pub fn row_mut(&mut self, i: usize) -> &mut [T] {
        &mut self.data[i * self.row_stride..][..self.cols]
    }

    /// Copies another matrix tile by tile, so that a transpose does not fetch a cache line
    /// for every entry.
    ///
    /// # Panics
    ///
    /// If the shapes differ.
    pub fn copy_from(&mut self, from: MatrixRef<'_, T>) {
        const TILE: usize = 16;
        assert_eq!((self.rows, self.cols), (from.rows, from.cols), "shapes of a copy");
        for top in (0..self.rows).step_by(TILE) {
            for left in (0..self.cols).step_by(TILE) {
                let right = self.cols.min(left + TILE);
                for i in top..self.rows.min(top + TILE) {
                    for (entry, j) in self.row_mut(i)[left..right].iter_mut().zip(left..) {
                        *entry = from.at(i, j);
                    }
                }
            }
        }
    }

    /// The same matrix, for reading.
    pub fn view(&self) -> MatrixRef<'_, T> {
        MatrixRef {
            data: self.data,
            rows: self.rows,
            cols: self.cols,
            row_stride: self.row_stride,
            col_stride: 1,
        }
    }

    /// A reborrow with a shorter lifetime.
    pub fn reborrow(&mut self) -> MatrixMut<'_, T> {
        MatrixMut { data: self.data, rows: self.rows, cols: self.cols, row_stride: self.row_stride }
    }

    /// Rows `start .. start + rows` and columns `left .. left + cols`.
    ///
    /// # Panics
    ///
    /// If the submatrix is not inside the matrix.
    pub fn part(self, start: usize, rows: usize, left: usize, cols: usize) -> MatrixMut<'a, T> {
        assert!(
            start + rows <= self.rows && left + cols <= self.cols,
            "a part lies outside its matrix"
        );
        let first = (start * self.row_stride + left).min(self.data.len());
        MatrixMut { data: &mut self.data[first..], rows, cols, row_stride: self.row_stride }
    }
}

/// Whether every entry of a strided matrix lies within `len` entries.
fn fits(len: usize, rows: usize, cols: usize, row_stride: usize, col_stride: usize) -> bool {
    if rows == 0 || cols == 0 {
        return true;
    }
    let last_row = (rows - 1).checked_mul(row_stride);
    let last_col = (cols - 1).checked_mul(col_stride);
    last_row.zip(last_col).and_then(|(r, c)| r.checked_add(c)).is_some_and(|last| last < len)
}

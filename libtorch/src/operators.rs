//! The operators of a plan as calls of libtorch.
//!
//! Every operator has several copies of its tensors, used in turn, so that none finds them in the cache.

use std::cell::{Cell, RefCell};

use tch::{Device, Kind as Element, Tensor};

use runtime::profile::{DType, Item, Kind, Size};

use crate::error::TorchError;

/// Most copies of an operator's tensors.
const MOST_COPIES: usize = 64;
/// Bytes of results that are kept for backward passes: they are freshly allocated memory, which is slow.
const RECORDED: f64 = 32e6;
/// Tensors begin at multiples of so many elements: a cache line of the shortest.
const ALIGNMENT: i64 = 64;

/// Random numbers that tensors are views of: drawing them for each tensor, and touching fresh memory, takes longer than
/// most operators.
pub(super) struct Pool {
    elements: i64,
    /// The numbers by element type.
    filled: RefCell<Vec<(Element, Tensor)>>,
    /// Start of the next view.
    next: Cell<i64>,
    device: Device,
}

/// An operator ready to be called.
pub(super) struct Prepared {
    pub(super) copies: Vec<Copy>,
    forward: Box<Forward>,
}

/// One set of tensors.
pub(super) struct Copy {
    /// Tensors that need gradients.
    pub(super) inputs: Vec<Tensor>,
    /// Trained parameters.
    pub(super) weights: Vec<Tensor>,
    /// Indices, and statistics that do not train.
    pub(super) rest: Vec<Tensor>,
}

type Forward = dyn Fn(&Copy) -> Result<Tensor, tch::TchError>;

impl Pool {
    /// Makes a pool of so many bytes of float32.
    pub(super) fn new(bytes: f64, device: Device) -> Self {
        let elements = (bytes / 4.0) as i64;
        Self { elements, filled: RefCell::default(), next: Cell::new(0), device }
    }

    /// Returns normal numbers of an item's image or filter in the layout that the item is of.
    pub(super) fn laid_out(
        &self,
        item: &Item,
        shape: &[i64],
        element: Element,
    ) -> Result<Tensor, TorchError> {
        match *shape {
            [batch, channels, height, width] if item.kind.is_channels_last() => {
                let lain = self.normal(&[batch, height, width, channels], element)?;
                Ok(lain.f_permute([0, 3, 1, 2])?)
            }
            _ => self.normal(shape, element),
        }
    }

    /// Returns normal numbers that no other tensor of the same copy shares.
    pub(super) fn normal(&self, shape: &[i64], element: Element) -> Result<Tensor, TorchError> {
        let n: i64 = shape.iter().product();
        let pool = self.filled(element)?;
        if n > self.elements {
            let repeated = pool.f_repeat([n / self.elements + 1])?;
            return Ok(repeated.f_narrow(0, 0, n)?.f_reshape(shape)?);
        }
        let start = if self.next.get() + n > self.elements { 0 } else { self.next.get() };
        self.next.set((start + n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
        Ok(pool.f_narrow(0, start, n)?.f_reshape(shape)?)
    }

    fn filled(&self, element: Element) -> Result<Tensor, TorchError> {
        let mut filled = self.filled.borrow_mut();
        if let Some((_, known)) = filled.iter().find(|(known, _)| *known == element) {
            return Ok(known.shallow_clone());
        }
        let numbers = Tensor::f_randn([self.elements], (Element::Float, self.device))?.f_to_kind(element)?;
        filled.push((element, numbers.shallow_clone()));
        Ok(numbers)
    }

    fn indices(&self, n: i64, below: i64) -> Result<Tensor, TorchError> {
        Ok(Tensor::f_randint(below, [n], (Element::Int64, self.device))?)
    }
}

/// Returns libtorch's name of a type.
pub(super) fn element(dtype: DType) -> Element {
    match dtype {
        DType::Float32 | DType::Tf32 => Element::Float,
        DType::BFloat16 => Element::BFloat16,
        DType::Float16 => Element::Half,
    }
}

/// Shapes of an operator's tensors.
#[derive(Default)]
struct Shapes {
    inputs: Vec<Vec<i64>>,
    weights: Vec<Vec<i64>>,
    /// Number of indices, and what they are below.
    indices: Option<(i64, i64)>,
    /// Length of a running mean and a running variance.
    statistics: Option<i64>,
}

impl Prepared {
    /// Makes an operator with as many copies as fill `rotation` bytes.
    pub(super) fn new(item: &Item, pool: &Pool, rotation: f64) -> Result<Self, TorchError> {
        let element = element(item.dtype);
        let work = item.work();
        let n = ((rotation / (work.bytes + work.saved_bytes).max(1.0)).ceil() as usize).clamp(1, MOST_COPIES);
        let shapes = shapes(item);
        // Other rows of a large table are as cold as the same rows of another.
        let n_tables = match item.size {
            Size::Table { cols, vocabulary, .. } => {
                let table = item.dtype.bytes() * cols as f64 * vocabulary as f64;
                ((rotation / table).ceil() as usize).clamp(1, n)
            }
            _ => n,
        };
        let mut weights: Vec<Vec<Tensor>> = Vec::new();
        let mut copy = |index: usize| {
            let make = |shape: &Vec<i64>| pool.laid_out(item, shape, element);
            if index < n_tables {
                weights.push(shapes.weights.iter().map(make).collect::<Result<_, _>>()?);
            }
            let mut rest = Vec::new();
            if let Some((n, below)) = shapes.indices {
                rest.push(pool.indices(n, below)?);
            }
            if let Some(channels) = shapes.statistics {
                rest.push(Tensor::f_zeros([channels], (element, pool.device))?);
                rest.push(Tensor::f_ones([channels], (element, pool.device))?);
            }
            // How often a maximum changes decides how long finding it takes. In models a pool nearly always follows a
            // ReLU, half of whose results are zeros.
            let input = |shape: &Vec<i64>| match item.kind.plain() {
                Kind::MaxPool => Ok(make(shape)?.f_relu()?),
                _ => make(shape),
            };
            Ok::<_, TorchError>(Copy {
                inputs: shapes.inputs.iter().map(input).collect::<Result<_, _>>()?,
                weights: weights[index % n_tables].iter().map(Tensor::shallow_clone).collect(),
                rest,
            })
        };
        let copies = (0..n).map(&mut copy).collect::<Result<_, _>>()?;
        Ok(Self { copies, forward: forward(item) })
    }

    /// Calls the operator on the next copy.
    pub(super) fn call(&self, index: usize) -> Result<Tensor, TorchError> {
        Ok((self.forward)(&self.copies[index % self.copies.len()])?)
    }

    /// Keeps as many copies as fit with results of this many bytes.
    pub(super) fn limit(&mut self, output_bytes: f64) {
        self.copies.truncate(((RECORDED / output_bytes.max(1.0)) as usize).max(1));
    }

    /// Makes inputs and weights require gradients.
    pub(super) fn record(&mut self) -> Result<(), TorchError> {
        for copy in &mut self.copies {
            for tensor in copy.inputs.iter_mut().chain(&mut copy.weights) {
                *tensor = tensor.f_set_requires_grad(true)?;
            }
        }
        Ok(())
    }
}

fn shapes(item: &Item) -> Shapes {
    let kind = item.kind.plain();
    let of = |sizes: &[u64]| sizes.iter().map(|&size| size as i64).collect::<Vec<i64>>();
    let mut shapes = Shapes::default();
    match item.size {
        Size::Product { batch, m, n, k } if kind == Kind::Bmm => {
            shapes.inputs = vec![of(&[batch, m, k]), of(&[batch, k, n])];
        }
        Size::Product { m, n, k, .. } => {
            shapes.inputs = vec![of(&[m, k])];
            shapes.weights = vec![of(&[n, k]), of(&[n])];
        }
        Size::Convolution {
            batch,
            in_channels,
            out_channels,
            groups,
            height,
            width,
            kernel,
            stride,
            padding,
        } => {
            let reach = |input| Size::reach(input, kernel, stride, padding);
            let weight = of(&[out_channels, in_channels / groups, kernel, kernel]);
            match kind {
                Kind::MaxPool | Kind::AvgPool => {
                    shapes.inputs = vec![of(&[batch, in_channels, height, width])];
                }
                Kind::TransposedConvolution => {
                    shapes.inputs = vec![of(&[batch, out_channels, reach(height), reach(width)])];
                    shapes.weights = vec![weight];
                }
                _ => {
                    shapes.inputs = vec![of(&[batch, in_channels, height, width])];
                    shapes.weights = vec![weight];
                }
            }
        }
        Size::Attention { batch, heads, seq, kv_seq, head_dim, .. } => {
            let keys = of(&[batch, heads, kv_seq, head_dim]);
            shapes.inputs = vec![of(&[batch, heads, seq, head_dim]), keys.clone(), keys];
        }
        Size::Table { rows, cols, vocabulary } => {
            shapes.weights = vec![of(&[vocabulary, cols])];
            shapes.indices = Some((rows as i64, vocabulary as i64));
        }
        Size::Images { batch, channels, height, width, .. } => {
            shapes.inputs = vec![of(&[batch, channels, height, width])];
            if matches!(kind, Kind::BatchNorm | Kind::BatchNormEval | Kind::GroupNorm) {
                shapes.weights = vec![of(&[channels]), of(&[channels])];
            }
            if matches!(kind, Kind::BatchNorm | Kind::BatchNormEval) {
                shapes.statistics = Some(channels as i64);
            }
        }
        Size::Heads { batch, heads, seq, head_dim } => {
            shapes.inputs = vec![of(&[batch, seq, heads, head_dim])];
        }
        Size::Rows { rows, cols } => {
            let whole = of(&[rows, cols]);
            shapes.inputs = match kind {
                Kind::Add | Kind::Mul => vec![whole.clone(), whole],
                Kind::Cat => vec![of(&[rows, cols / 2]), of(&[rows, cols / 2])],
                _ => vec![whole],
            };
            if kind == Kind::LayerNorm {
                shapes.weights = vec![of(&[cols]), of(&[cols])];
            }
        }
    }
    shapes
}

fn forward(item: &Item) -> Box<Forward> {
    let none: Option<Tensor> = None;
    match (item.kind.plain(), item.size) {
        (Kind::Linear, _) => Box::new(|c| c.inputs[0].f_linear(&c.weights[0], Some(&c.weights[1]))),
        (Kind::Bmm, _) => Box::new(|c| c.inputs[0].f_bmm(&c.inputs[1])),
        (kind, Size::Convolution { kernel, stride, padding, groups, height, .. }) => {
            let (k, s, p) = (kernel as i64, stride as i64, padding as i64);
            match kind {
                Kind::MaxPool => {
                    Box::new(move |c| c.inputs[0].f_max_pool2d([k, k], [s, s], [p, p], [1, 1], false))
                }
                Kind::AvgPool => {
                    Box::new(move |c| c.inputs[0].f_avg_pool2d([k, k], [s, s], [p, p], false, true, None))
                }
                Kind::TransposedConvolution => {
                    // What the strided convolution leaves out at the edge.
                    let rest = (height + 2 * padding).saturating_sub(kernel) % stride;
                    let rest = rest as i64;
                    Box::new(move |c| {
                        let (x, w) = (&c.inputs[0], &c.weights[0]);
                        x.f_conv_transpose2d(w, none.as_ref(), [s, s], [p, p], [rest, rest], 1, [1, 1])
                    })
                }
                _ => Box::new(move |c| {
                    let (x, w) = (&c.inputs[0], &c.weights[0]);
                    x.f_conv2d(w, none.as_ref(), [s, s], [p, p], [1, 1], groups as i64)
                }),
            }
        }
        (_, Size::Attention { causal, .. }) => Box::new(move |c| {
            let (q, k, v) = (&c.inputs[0], &c.inputs[1], &c.inputs[2]);
            Tensor::f_scaled_dot_product_attention(q, k, v, none.as_ref(), 0.0, causal, None, false)
        }),
        (_, Size::Table { .. }) => {
            Box::new(|c| Tensor::f_embedding(&c.weights[0], &c.rest[0], -1, false, false))
        }
        (kind, Size::Images { groups, height, width, .. }) => match kind {
            Kind::GroupNorm => Box::new(move |c| {
                let (w, b) = (Some(&c.weights[0]), Some(&c.weights[1]));
                c.inputs[0].f_group_norm(groups as i64, w, b, 1e-5, true)
            }),
            Kind::BatchNorm | Kind::BatchNormEval => Box::new(move |c| {
                let (w, b) = (Some(&c.weights[0]), Some(&c.weights[1]));
                let (mean, variance) = (Some(&c.rest[0]), Some(&c.rest[1]));
                c.inputs[0].f_batch_norm(w, b, mean, variance, kind == Kind::BatchNorm, 0.1, 1e-5, true)
            }),
            Kind::UpsampleNearest => Box::new(move |c| {
                c.inputs[0].f_upsample_nearest2d([2 * height as i64, 2 * width as i64], None, None)
            }),
            Kind::UpsampleBilinear => Box::new(move |c| {
                c.inputs[0].f_upsample_bilinear2d([2 * height as i64, 2 * width as i64], false, None, None)
            }),
            _ => Box::new(|c| c.inputs[0].f_adaptive_avg_pool2d([1, 1])),
        },
        (_, Size::Heads { .. }) => Box::new(|c| c.inputs[0].f_transpose(1, 2)?.f_contiguous()),
        (kind, Size::Product { .. } | Size::Rows { .. }) => match kind {
            Kind::LayerNorm => Box::new(|c| {
                let width = c.weights[0].size();
                c.inputs[0].f_layer_norm(width, Some(&c.weights[0]), Some(&c.weights[1]), 1e-5, true)
            }),
            Kind::Softmax => Box::new(|c| c.inputs[0].f_softmax(-1, None)),
            Kind::Relu => Box::new(|c| c.inputs[0].f_relu()),
            Kind::Gelu => Box::new(|c| c.inputs[0].f_gelu("none")),
            Kind::Silu => Box::new(|c| c.inputs[0].f_silu()),
            Kind::Sigmoid => Box::new(|c| c.inputs[0].f_sigmoid()),
            Kind::Tanh => Box::new(|c| c.inputs[0].f_tanh()),
            Kind::Add => Box::new(|c| c.inputs[0].f_add(&c.inputs[1])),
            Kind::Mul => Box::new(|c| c.inputs[0].f_mul(&c.inputs[1])),
            Kind::Dropout => Box::new(|c| c.inputs[0].f_dropout(0.1, true)),
            Kind::Cat => Box::new(|c| Tensor::f_cat(&c.inputs, 1)),
            _ => Box::new(|c| c.inputs[0].f_to_dtype(c.inputs[0].kind(), false, true)),
        },
    }
}

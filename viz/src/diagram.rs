//! `Diagram`: nested boxes and the tensors that flow between them, independent of models.
//!
//! The whole tree is one list, parents before their children, so that no depth of nesting needs recursion. Siblings are
//! in an order in which every tensor flows forward; a trace is in such an order, because blocks are contiguous runs of
//! its operators.

use thiserror::Error;

/// Index into [`Diagram::boxes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BoxId(pub u32);

impl BoxId {
    /// The box that holds all others; it is drawn as the page.
    pub const ROOT: BoxId = BoxId(0);

    /// Returns the position in the diagram's list.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A picture without positions and colours.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagram {
    /// Boxes, parents before their children; the first is [`BoxId::ROOT`].
    boxes: Vec<DiagramBox>,
    /// Tensors between boxes.
    wires: Vec<Wire>,
    /// The name of the amounts: `forward time`, `parameters`.
    pub amounts: Option<String>,
    /// True when the boxes' stages are to be shown.
    pub has_stages: bool,
}

/// One box.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DiagramBox {
    /// Unique name for programs, shown in the tool tip: `layer1.0.conv1`.
    pub path: String,
    /// First line: `conv1`.
    pub title: String,
    /// Second line: `Conv2d`.
    pub subtitle: String,
    /// Further lines.
    pub details: Vec<String>,
    /// Name and value, for the tool tip and for programs.
    pub attributes: Vec<(String, String)>,
    /// The range of the model's operators in it, including those that the picture leaves out.
    pub operators: std::ops::Range<u32>,
    /// Its family, which gives its colour.
    pub family: Family,
    /// Whether it is an operator that reads parameters of the model.
    pub has_parameters: bool,
    /// Its amount, when amounts are shown.
    pub amount: Option<Amount>,
    /// The stage it runs in; `None` for a box of several stages.
    pub stage: Option<u32>,
    /// The number of siblings that it represents, including itself; mostly 1.
    pub repeat: u32,
    /// Tensors from far away, named instead of drawn.
    pub tags: Vec<String>,
    /// The box around it; `None` for the root.
    pub parent: Option<BoxId>,
    /// The boxes in it, in an order in which tensors flow forward.
    pub children: Vec<BoxId>,
}

/// The amount of a box.
#[derive(Clone, Debug, PartialEq)]
pub struct Amount {
    /// The number; finite and not negative.
    pub value: f64,
    /// The number with its unit: `1.20 ms`.
    pub text: String,
}

/// The family of a box, which decides its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Mixed content.
    #[default]
    Module,
    /// Convolutions.
    Convolution,
    /// Linear layers and matrix products.
    Matmul,
    /// Attention and recurrent layers.
    Sequence,
    /// Normalisations.
    Norm,
    /// Activations and arithmetic.
    Elementwise,
    /// Pools, resampling, sums and soft-maxima.
    Reduce,
    /// Table look-ups.
    Embedding,
    /// Views and copies: data moves, nothing is computed.
    Movement,
    /// An input of the model.
    Input,
    /// An output of the model.
    Output,
}

impl Family {
    /// The families with a colour, in the order of the palette.
    pub const ALL: [Family; 9] = [
        Family::Module,
        Family::Convolution,
        Family::Matmul,
        Family::Sequence,
        Family::Norm,
        Family::Elementwise,
        Family::Reduce,
        Family::Embedding,
        Family::Movement,
    ];

    /// Returns the words of the legend.
    pub fn label(self) -> &'static str {
        match self {
            Family::Module => "module",
            Family::Convolution => "convolution",
            Family::Matmul => "matrix product",
            Family::Sequence => "attention, recurrence",
            Family::Norm => "normalisation",
            Family::Elementwise => "activation, arithmetic",
            Family::Reduce => "pooling, reduction",
            Family::Embedding => "embedding",
            Family::Movement => "reshape, copy",
            Family::Input => "input",
            Family::Output => "output",
        }
    }

    /// Returns whether it is an input or output of the model.
    pub fn is_terminal(self) -> bool {
        matches!(self, Family::Input | Family::Output)
    }
}

/// A tensor, from the box that computes it to the boxes that read it.
#[derive(Clone, Debug, PartialEq)]
pub struct Wire {
    /// The box that computes it; it has no children.
    pub source: BoxId,
    /// Its shape.
    pub label: String,
    /// The boxes that read it, in order, each once; they have no children.
    pub sinks: Vec<BoxId>,
}

/// Why a diagram is invalid.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DiagramError {
    /// A wire runs against the order of the boxes.
    #[error("a tensor flows backwards from `{from}` to `{to}`")]
    Backwards {
        /// Path of the source.
        from: String,
        /// Path of the sink.
        to: String,
    },
    /// A wire ends at a box that holds others.
    #[error("a tensor ends at `{path}`, which is not an innermost box")]
    NotInnermost {
        /// Path of the box.
        path: String,
    },
}

impl Diagram {
    /// Starts a diagram from the box around everything.
    pub fn new(root: DiagramBox) -> Self {
        let root = DiagramBox { parent: None, children: Vec::new(), repeat: 1, ..root };
        Self { boxes: vec![root], wires: Vec::new(), amounts: None, has_stages: false }
    }

    /// Names the whole.
    pub fn set_title(&mut self, title: &str) {
        self.boxes[0].title = title.to_string();
    }

    /// Adds a box as the last child of another.
    pub fn add(&mut self, parent: BoxId, new: DiagramBox) -> BoxId {
        let id = BoxId(u32::try_from(self.boxes.len()).expect("no model has 2^32 operators"));
        let repeat = new.repeat.max(1);
        self.boxes.push(DiagramBox { parent: Some(parent), children: Vec::new(), repeat, ..new });
        self.boxes[parent.index()].children.push(id);
        id
    }

    /// Adds a tensor. Sinks may repeat and be in any order; a tensor without readers is not drawn.
    pub fn connect(
        &mut self,
        source: BoxId,
        label: impl Into<String>,
        sinks: impl IntoIterator<Item = BoxId>,
    ) {
        let mut sinks: Vec<BoxId> = sinks.into_iter().filter(|sink| *sink != source).collect();
        sinks.sort_unstable();
        sinks.dedup();
        if !sinks.is_empty() {
            self.wires.push(Wire { source, label: label.into(), sinks });
        }
    }

    /// Returns all boxes, parents before their children.
    pub fn boxes(&self) -> &[DiagramBox] {
        &self.boxes
    }

    /// Returns the tensors.
    pub fn wires(&self) -> &[Wire] {
        &self.wires
    }

    /// Returns a box.
    pub fn get(&self, id: BoxId) -> &DiagramBox {
        &self.boxes[id.index()]
    }

    /// Returns a box for editing its texts.
    pub(crate) fn get_mut(&mut self, id: BoxId) -> &mut DiagramBox {
        &mut self.boxes[id.index()]
    }

    /// Returns every id, parents before their children.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = BoxId> + use<> {
        (0..self.boxes.len() as u32).map(BoxId)
    }

    /// Returns whether a box has no boxes in it.
    pub fn is_leaf(&self, id: BoxId) -> bool {
        self.get(id).children.is_empty()
    }

    /// Returns each box's distance from the root.
    pub fn depths(&self) -> Vec<u32> {
        let mut depths = vec![0u32; self.boxes.len()];
        for (index, item) in self.boxes.iter().enumerate() {
            if let Some(parent) = item.parent {
                depths[index] = depths[parent.index()] + 1;
            }
        }
        depths
    }

    /// Checks the assumptions of the layout.
    ///
    /// # Errors
    ///
    /// A tensor that flows backwards among siblings, or one that ends at a box with children.
    pub fn validate(&self) -> Result<(), DiagramError> {
        let order = self.preorder();
        for wire in &self.wires {
            for end in std::iter::once(wire.source).chain(wire.sinks.iter().copied()) {
                if !self.is_leaf(end) {
                    return Err(DiagramError::NotInnermost { path: self.get(end).path.clone() });
                }
            }
            for sink in &wire.sinks {
                if order[sink.index()] <= order[wire.source.index()] {
                    return Err(DiagramError::Backwards {
                        from: self.get(wire.source).path.clone(),
                        to: self.get(*sink).path.clone(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Returns each box's place in a walk that visits children in order.
    pub(crate) fn preorder(&self) -> Vec<u32> {
        let mut order = vec![0; self.boxes.len()];
        let mut stack = vec![BoxId::ROOT];
        let mut next = 0;
        while let Some(id) = stack.pop() {
            order[id.index()] = next;
            next += 1;
            stack.extend(self.get(id).children.iter().rev());
        }
        order
    }

    /// Keeps only the tensors that `rewrite` returns.
    pub(crate) fn with_wires(mut self, wires: Vec<Wire>) -> Self {
        self.wires = wires;
        self
    }
}

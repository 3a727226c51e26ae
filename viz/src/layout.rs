//! Positions of everything in a diagram, from the innermost boxes outwards.
//!
//! Each box is laid out by itself (see `inside`) and is then one box to its parent; a tensor that crosses its border
//! goes through a port there, so the line continues inside. No step considers the whole picture, so one mask read by a
//! hundred layers, or 20,000 operators, cost little. Boxes with the same inside share one layout.

use std::{collections::HashMap, rc::Rc};

use crate::{
    cards::{self, Card},
    diagram::{BoxId, Diagram, DiagramError},
    inside::{Inside, Spot, Wrap, lay_out},
    layers::{Net, Role, Sheet, SheetNode},
    lift::{Lifted, lift},
    svg::Point,
};

/// The direction from the model's inputs to its outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// Below.
    #[default]
    TopToBottom,
    /// To the right.
    LeftToRight,
}

/// A rectangle, in pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[allow(missing_docs)]
pub struct Rect {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
}

/// A diagram with positions.
#[derive(Clone, Debug, Default)]
pub struct Scene {
    /// Size of the picture, without title and legend.
    pub width: f64,
    /// See `width`.
    pub height: f64,
    /// Each box's rectangle.
    pub rects: Vec<Rect>,
    /// Each frame's title, from its upper left corner.
    pub(crate) heads: Vec<Point>,
    /// Each box's texts.
    pub(crate) cards: Vec<Card>,
    /// Each wire's lines.
    pub routes: Vec<Route>,
    /// Shapes beside the lines.
    pub labels: Vec<Label>,
}

/// The route of a wire.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Route {
    /// Runs of horizontal and vertical lines.
    pub lines: Vec<Vec<Point>>,
    /// Its ends: the tips of its arrows.
    pub tips: Vec<Point>,
}

/// A text beside a line.
#[derive(Clone, Debug, PartialEq)]
pub struct Label {
    /// The box whose tensors it describes.
    pub source: BoxId,
    /// Its text.
    pub text: String,
    /// The space that it takes.
    pub rect: Rect,
}

/// Space between a frame's border and its content, along and across.
const PADDING: f64 = 14.0;
/// Height reserved for a label.
const LABEL_HEIGHT: f64 = 13.0;

/// A laid-out box of either kind.
#[derive(Clone)]
struct Body {
    /// Equal for bodies of the same inside and size.
    shape: usize,
    length: f64,
    breadth: f64,
    frame: Option<Rc<Frame>>,
}

/// The inside of a box with children, borders included.
#[derive(Default)]
struct Frame {
    length: f64,
    breadth: f64,
    /// From the frame's corner to the inside's.
    origin: Spot,
    inside: Inside,
    /// Ports in the border, across from the frame's corner, in the order of the nets.
    entries: Vec<(usize, f64)>,
    exits: Vec<(usize, f64)>,
    /// The title, from the frame's corner.
    head: Spot,
}

/// Lays out a diagram.
///
/// # Errors
///
/// When the diagram is not valid; see [`Diagram::validate`].
pub fn lay_out_diagram(diagram: &Diagram, direction: Direction) -> Result<Scene, DiagramError> {
    diagram.validate()?;
    let n_boxes = diagram.boxes().len();
    let nets = lift(diagram);
    let cards: Vec<Card> = diagram
        .ids()
        .map(|id| if diagram.is_leaf(id) { cards::leaf(diagram, id) } else { cards::head(diagram, id) })
        .collect();
    let mut made: Vec<Vec<&str>> = vec![Vec::new(); n_boxes];
    for wire in diagram.wires() {
        made[wire.source.index()].push(&wire.label);
    }
    let labels: Vec<(String, f64)> = made.iter().map(|labels| cards::wire_label(labels)).collect();

    let mut layouter = Layouter { direction, shapes: HashMap::new(), frames: HashMap::new() };
    let mut bodies: Vec<Option<Body>> = vec![None; n_boxes];
    for id in diagram.ids().rev() {
        let card = &cards[id.index()];
        let body = if diagram.is_leaf(id) {
            let (length, breadth) = layouter.turned(card.width, card.height);
            Body {
                shape: layouter.shape(vec![length.to_bits(), breadth.to_bits()]),
                length,
                breadth,
                frame: None,
            }
        } else {
            let children = &diagram.get(id).children;
            let inner: Vec<(Body, f64)> = children
                .iter()
                .map(|child| {
                    let body = bodies[child.index()].clone().expect("children come before parents");
                    let label = if diagram.is_leaf(*child) { labels[child.index()].1 } else { 0.0 };
                    (body, label)
                })
                .collect();
            layouter.frame(&inner, &nets[id.index()], &nets, children, card, id == BoxId::ROOT)
        };
        bodies[id.index()] = Some(body);
    }
    let bodies: Vec<Body> = bodies.into_iter().map(|body| body.expect("every box was laid out")).collect();
    Ok(assemble(diagram, direction, &nets, bodies, cards, labels))
}

struct Layouter {
    direction: Direction,
    shapes: HashMap<Vec<u64>, usize>,
    frames: HashMap<usize, Rc<Frame>>,
}

impl Layouter {
    /// Returns length and breadth of something of this width and height.
    fn turned(&self, width: f64, height: f64) -> (f64, f64) {
        match self.direction {
            Direction::TopToBottom => (height, width),
            Direction::LeftToRight => (width, height),
        }
    }

    /// Returns a number that stands for a key, the same for equal keys.
    fn shape(&mut self, key: Vec<u64>) -> usize {
        let next = self.shapes.len();
        *self.shapes.entry(key).or_insert(next)
    }

    fn frame(
        &mut self,
        inner: &[(Body, f64)],
        nets: &[Lifted],
        all_nets: &[Vec<Lifted>],
        children: &[BoxId],
        head: &Card,
        is_root: bool,
    ) -> Body {
        let index_of: HashMap<usize, usize> = nets.iter().enumerate().map(|(i, net)| (net.wire, i)).collect();
        let mut key = vec![u64::MAX, head.width.to_bits(), head.height.to_bits(), u64::from(is_root)];
        for ((body, label), child) in inner.iter().zip(children) {
            key.push(body.shape as u64);
            key.push(label.to_bits());
            // Which of this box's nets go through which of the child's ports.
            for (place, net) in all_nets[child.index()].iter().enumerate() {
                if net.source.is_none() || net.has_exit {
                    let here = index_of.get(&net.wire);
                    key.extend([place as u64, here.map_or(u64::MAX, |here| *here as u64)]);
                }
            }
        }
        for net in nets {
            key.push(u64::MAX - 1);
            key.push(net.source.map_or(u64::MAX, u64::from));
            key.push(u64::from(net.has_exit));
            key.extend(net.sinks.iter().map(|sink| u64::from(*sink)));
        }
        let shape = self.shape(key);
        let frame = match self.frames.get(&shape) {
            Some(frame) => Rc::clone(frame),
            None => {
                let frame =
                    Rc::new(self.lay_out_frame(inner, nets, &index_of, all_nets, children, head, is_root));
                self.frames.insert(shape, Rc::clone(&frame));
                frame
            }
        };
        Body { shape, length: frame.length, breadth: frame.breadth, frame: Some(frame) }
    }

    #[allow(clippy::too_many_arguments)]
    fn lay_out_frame(
        &self,
        inner: &[(Body, f64)],
        nets: &[Lifted],
        index_of: &HashMap<usize, usize>,
        all_nets: &[Vec<Lifted>],
        children: &[BoxId],
        head: &Card,
        is_root: bool,
    ) -> Frame {
        let mut sheet = Sheet::default();
        let mut n_leaving = vec![0usize; inner.len()];
        for source in nets.iter().filter_map(|net| net.source) {
            n_leaving[source as usize] += 1;
        }
        for (((body, label), child), n_leaving) in inner.iter().zip(children).zip(n_leaving) {
            let child_nets = &all_nets[child.index()];
            sheet.nodes.push(self.sheet_node(body, *label, n_leaving, index_of, child_nets));
        }
        let port = |role, net| SheetNode {
            role,
            length: 0.0,
            label: 0.0,
            before: 4.0,
            after: 4.0,
            ports: vec![(net, 0.0)],
        };
        let (mut entries, mut exits) = (Vec::new(), Vec::new());
        for (index, net) in nets.iter().enumerate() {
            let source = match net.source {
                Some(child) => child as usize,
                None => {
                    sheet.nodes.push(port(Role::Entry, index));
                    entries.push((index, sheet.nodes.len() - 1));
                    sheet.nodes.len() - 1
                }
            };
            let mut sinks: Vec<usize> = net.sinks.iter().map(|sink| *sink as usize).collect();
            if net.has_exit {
                sheet.nodes.push(port(Role::Exit, index));
                exits.push((index, sheet.nodes.len() - 1));
                sinks.push(sheet.nodes.len() - 1);
            }
            sheet.nets.push(Net { source, sinks });
        }
        let inside = lay_out(&sheet, self.wrap());

        // The border and the title around it.
        let mut frame = Frame::default();
        let ports = |ends: &[(usize, usize)]| -> Vec<(usize, f64)> {
            ends.iter().map(|(net, node)| (*net, inside.nodes[*node].across)).collect()
        };
        (frame.entries, frame.exits) = (ports(&entries), ports(&exits));
        let head_height = if is_root { 0.0 } else { head.height };
        match self.direction {
            Direction::TopToBottom => {
                // Lines enter through the upper border, where the title is: look for space between them.
                let places: Vec<f64> = frame.entries.iter().map(|(_, at)| at + PADDING).collect();
                let (at, widening) = room_for(head.width, &places, inside.breadth + 2.0 * PADDING);
                frame.head = Spot { along: 0.0, across: at };
                frame.origin = Spot { along: head_height, across: PADDING + widening };
                frame.length = head_height + inside.length + PADDING;
                frame.breadth = inside.breadth + 2.0 * (PADDING + widening);
                if frame.exits.is_empty() && !is_root {
                    frame.length += 2.0;
                }
                if entries.is_empty() {
                    frame.origin.along += 6.0;
                    frame.length += 6.0;
                }
            }
            Direction::LeftToRight => {
                frame.head = Spot { along: 10.0, across: 0.0 };
                frame.origin = Spot { along: PADDING / 2.0, across: head_height + 6.0 };
                frame.length = (inside.length + PADDING).max(head.width + 20.0);
                frame.breadth = inside.breadth + head_height + 6.0 + PADDING;
            }
        }
        for (_, at) in frame.entries.iter_mut().chain(&mut frame.exits) {
            *at += frame.origin.across;
        }
        frame.inside = inside;
        frame
    }

    /// Turns a laid-out child into a node of its parent's sheet.
    fn sheet_node(
        &self,
        body: &Body,
        label: f64,
        n_leaving: usize,
        index_of: &HashMap<usize, usize>,
        child_nets: &[Lifted],
    ) -> SheetNode {
        let half = body.breadth / 2.0;
        let mut node = SheetNode {
            role: Role::Box,
            length: body.length,
            label: 0.0,
            before: half,
            after: half,
            ports: Vec::new(),
        };
        match &body.frame {
            Some(frame) => {
                for (port, at) in frame.entries.iter().chain(&frame.exits) {
                    let wire = child_nets[*port].wire;
                    if let Some(net) = index_of.get(&wire) {
                        node.ports.push((*net, at - half));
                    }
                }
            }
            None if label > 0.0 => {
                match self.direction {
                    Direction::TopToBottom => {
                        node.label = LABEL_HEIGHT;
                        let rightmost = (n_leaving.saturating_sub(1) as f64 * 14.0).min(half - 9.0).max(0.0);
                        node.after = half.max(rightmost + label + 9.0);
                    }
                    Direction::LeftToRight => {
                        node.label = label + 10.0;
                        node.before = half.max(18.0);
                    }
                }
                node.length += node.label;
            }
            None => {}
        }
        node
    }

    fn wrap(&self) -> Wrap {
        match self.direction {
            Direction::TopToBottom => Wrap { longest: 1500.0, slenderest: 2.2, wanted: 0.75 },
            Direction::LeftToRight => Wrap { longest: 2200.0, slenderest: 4.0, wanted: 1.6 },
        }
    }
}

/// Finds a position for a title between lines; returns it and by how much both sides must grow.
fn room_for(width: f64, lines: &[f64], breadth: f64) -> (f64, f64) {
    const GAP: f64 = 8.0;
    let mut lines = lines.to_vec();
    lines.sort_by(f64::total_cmp);
    let mut from = 2.0;
    for line in lines.iter().copied().chain([breadth + 2.0]) {
        if line - from >= width + 2.0 * GAP {
            return (from + GAP, 0.0);
        }
        from = line;
    }
    let first = lines.first().copied().unwrap_or(breadth);
    (2.0 + GAP, (width + 2.0 * GAP + 2.0 - first).max(0.0))
}

/// Converts positions inside boxes to positions in the picture.
fn assemble(
    diagram: &Diagram,
    direction: Direction,
    nets: &[Vec<Lifted>],
    bodies: Vec<Body>,
    cards: Vec<Card>,
    labels: Vec<(String, f64)>,
) -> Scene {
    let point = |spot: Spot| match direction {
        Direction::TopToBottom => Point::new(spot.across, spot.along),
        Direction::LeftToRight => Point::new(spot.along, spot.across),
    };
    let n_boxes = diagram.boxes().len();
    let mut scene = Scene {
        rects: vec![Rect::default(); n_boxes],
        heads: vec![Point::default(); n_boxes],
        cards,
        routes: vec![Route::default(); diagram.wires().len()],
        ..Scene::default()
    };
    let mut corners = vec![Spot::default(); n_boxes];
    for id in diagram.ids() {
        let (body, corner) = (&bodies[id.index()], corners[id.index()]);
        let at = point(corner);
        let size = point(Spot { along: body.length, across: body.breadth });
        scene.rects[id.index()] = Rect { x: at.x, y: at.y, width: size.x, height: size.y };
        let Some(frame) = &body.frame else { continue };
        let head =
            point(Spot { along: corner.along + frame.head.along, across: corner.across + frame.head.across });
        scene.heads[id.index()] = head;
        let origin =
            Spot { along: corner.along + frame.origin.along, across: corner.across + frame.origin.across };
        let children = &diagram.get(id).children;
        for (child, spot) in children.iter().zip(&frame.inside.nodes) {
            let half = bodies[child.index()].breadth / 2.0;
            corners[child.index()] =
                Spot { along: origin.along + spot.along, across: origin.across + spot.across - half };
        }
        let moved =
            |spot: &Spot| Spot { along: origin.along + spot.along, across: origin.across + spot.across };
        let lifted = &nets[id.index()];
        // Lines end at the frame's border, not at the inside's.
        let first_along = corner.along;
        let last_along = corner.along + frame.length;
        for (net, lines) in lifted.iter().zip(&frame.inside.lines) {
            let route = &mut scene.routes[net.wire];
            for line in lines {
                let mut line: Vec<Spot> = line.iter().map(&moved).collect();
                if net.source.is_none()
                    && let Some(first) = line.first_mut()
                    && (first.along - origin.along).abs() < 0.01
                {
                    first.along = first_along;
                }
                if net.has_exit
                    && let Some(last) = line.last_mut()
                    && (last.along - origin.along - frame.inside.length).abs() < 0.01
                {
                    last.along = last_along;
                }
                route.lines.push(line.into_iter().map(point).collect());
            }
        }
        for (net, node, spot) in &frame.inside.arrivals {
            if children.get(*node).is_some_and(|child| diagram.is_leaf(*child)) {
                scene.routes[lifted[*net].wire].tips.push(point(moved(spot)));
            }
        }
        place_labels(diagram, direction, id, frame, &corners, &bodies, &labels, &mut scene);
    }
    let root = scene.rects[0];
    (scene.width, scene.height) = (root.width, root.height);
    scene
}

/// Places the labels of the outputs of a frame's innermost children.
#[allow(clippy::too_many_arguments)]
fn place_labels(
    diagram: &Diagram,
    direction: Direction,
    id: BoxId,
    frame: &Frame,
    corners: &[Spot],
    bodies: &[Body],
    labels: &[(String, f64)],
    scene: &mut Scene,
) {
    let children = &diagram.get(id).children;
    let mut leaving: Vec<Vec<f64>> = vec![Vec::new(); children.len()];
    for (_, node, offset) in &frame.inside.departures {
        if let Some(offsets) = leaving.get_mut(*node) {
            offsets.push(*offset);
        }
    }
    for (child, offsets) in children.iter().zip(leaving) {
        let (text, width) = &labels[child.index()];
        if !diagram.is_leaf(*child) || text.is_empty() || offsets.is_empty() {
            continue;
        }
        let (corner, body) = (corners[child.index()], &bodies[child.index()]);
        let middle = corner.across + body.breadth / 2.0;
        let end = corner.along + body.length;
        let rect = match direction {
            Direction::TopToBottom => {
                let last = offsets.iter().copied().fold(f64::MIN, f64::max);
                Rect { x: middle + last + 5.0, y: end + 1.0, width: *width, height: LABEL_HEIGHT - 1.0 }
            }
            Direction::LeftToRight => {
                let first = offsets.iter().copied().fold(f64::MAX, f64::min);
                Rect {
                    x: end + 4.0,
                    y: middle + first - LABEL_HEIGHT - 1.0,
                    width: *width,
                    height: LABEL_HEIGHT - 1.0,
                }
            }
        };
        scene.labels.push(Label { source: *child, text: text.clone(), rect });
    }
}

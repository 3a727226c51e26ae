//! The rows, by family. A `-` is the default: nothing saved, nothing counted, fresh memory, the dispatcher's form in
//! Python.
//!
//! Each row fills every column, so that a new row answers every question.

mod copies;
mod creation;
mod elementwise;
mod exchanges;
mod linear_algebra;
mod norms_and_pools;
mod plumbing;
mod products;
mod reductions;
mod views;
mod without_shape_rule;

use crate::Operator;

pub(crate) const FAMILIES: usize = 11;
pub(crate) const ALL: [&[Operator]; FAMILIES] = [
    elementwise::ROWS,
    reductions::ROWS,
    products::ROWS,
    linear_algebra::ROWS,
    norms_and_pools::ROWS,
    views::ROWS,
    copies::ROWS,
    creation::ROWS,
    plumbing::ROWS,
    without_shape_rule::ROWS,
    exchanges::ROWS,
];

macro_rules! rows {
    ($($name:ident $class:ident $shape:ident $keeps:tt $flops:tt $kernel:tt $memory:tt $gives:tt $python:tt $in_place:tt $in_place_python:tt $split:tt
        $numbers:tt [$($mark:ident)*];)*) => {
        &[$(Operator {
            name: stringify!($name),
            class: crate::OperatorClass::$class,
            shape: crate::ShapeRule::$shape,
            keeps: super::cell!(Keeps, Nothing, $keeps),
            flops: super::cell!(Flops, Nothing, $flops),
            kernel: super::cell!(Kernel, OfClass, $kernel),
            memory: super::cell!(Memory, Fresh, $memory),
            gives: super::cell!(Gives, Tensor, $gives),
            python: super::cell!(Python, Dispatcher, $python),
            in_place: super::cell!(InPlace, Absent, $in_place),
            in_place_python: super::cell!(Python, Dispatcher, $in_place_python),
            split: super::cell!(Split, Whole, $split),
            numbers: super::cell!(Arithmetic, Nothing, $numbers),
            marks: 0 $(| crate::Mark::$mark.bit())*,
        }),*]
    };
}
use rows;

macro_rules! cell {
    ($column:ident, $plain:ident, -) => {
        crate::$column::$plain
    };
    ($column:ident, $plain:ident, $value:ident) => {
        crate::$column::$value
    };
}
use cell;

//! The life of a backup before and after its run: what berth does in place of Velero's other
//! controllers, as stock Velero's commands see it.

mod deletion;
mod download;
mod leaders;
mod locked;
mod schedule;
mod story;
mod sync;

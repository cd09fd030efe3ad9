//! The life of a backup before and after its run: what berth does in place of Velero's other controllers.

mod schedule;

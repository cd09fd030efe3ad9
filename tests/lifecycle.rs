//! The life of a backup after its run, where berth runs Velero's other controllers: as stock
//! Velero's commands see it.

mod sync;

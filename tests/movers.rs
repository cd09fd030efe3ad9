//! Data movements of a stock Velero, without berth: what there is to put in order.

mod real;
mod refused;
mod together;

const NAMESPACE: &str = "velero";

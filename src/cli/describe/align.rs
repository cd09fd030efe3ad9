//! Alignment at tabs: a cell ends with a tab, and the cells of one column in lines that follow each
//! other are equally wide.

const GAP: usize = 2;

/// Replaces tabs by blanks.
pub fn align(text: &str) -> String {
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
    let mut widths: Vec<Vec<usize>> =
        lines.iter().map(|cells| vec![0; cells.len().saturating_sub(1)]).collect();
    let columns = widths.iter().map(Vec::len).max().unwrap_or(0);
    for column in 0..columns {
        let mut start = 0;
        while start < lines.len() {
            let has = |line: usize| widths.get(line).is_some_and(|cells| cells.len() > column);
            if !has(start) {
                start += 1;
                continue;
            }
            let end = (start..lines.len()).find(|line| !has(*line)).unwrap_or(lines.len());
            let cells = lines.get(start..end).unwrap_or_default();
            let widest = cells.iter().filter_map(|cells| cells.get(column)).map(|cell| visible(cell)).max();
            for cells in widths.get_mut(start..end).unwrap_or_default() {
                if let Some(width) = cells.get_mut(column) {
                    *width = widest.unwrap_or(0) + GAP;
                }
            }
            start = end;
        }
    }
    let mut out = String::with_capacity(text.len() * 2);
    for (cells, widths) in lines.iter().zip(&widths) {
        let mut line = String::new();
        for (i, cell) in cells.iter().enumerate() {
            line.push_str(cell);
            if let Some(width) = widths.get(i) {
                line.extend(std::iter::repeat_n(' ', width.saturating_sub(visible(cell))));
            }
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Characters that take a place; colours take none.
fn visible(cell: &str) -> usize {
    let (mut count, mut is_colour) = (0, false);
    for c in cell.chars() {
        match c {
            '\x1b' => is_colour = true,
            'm' if is_colour => is_colour = false,
            _ if is_colour => {}
            _ => count += 1,
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::align;

    #[test]
    fn columns_are_aligned_in_lines_that_follow_each_other() {
        assert_eq!(align("a:\tx\nlong:\ty\n\nb:\tz\n"), "a:     x\nlong:  y\n\nb:  z\n");
        assert_eq!(
            align("Namespaces:\n\tIncluded:\t*\n\tEx:\t<none>\n"),
            "Namespaces:\n  Included:  *\n  Ex:        <none>\n"
        );
        assert_eq!(align("\x1b[31mred\x1b[0m\tx\nblue\ty\n"), "\x1b[31mred\x1b[0m   x\nblue  y\n");
        assert_eq!(align(""), "");
    }
}

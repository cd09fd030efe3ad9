//go:build tools

// Package tools names the program that this module pins.
package tools

import _ "github.com/vmware-tanzu/velero-plugin-for-aws/velero-plugin-for-aws"

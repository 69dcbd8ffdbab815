// Package coordinator divides global limits between regions.
package coordinator

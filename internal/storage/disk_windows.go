package storage

import (
	"errors"
	"syscall"
	"unsafe"
)

var getDiskFreeSpace = syscall.NewLazyDLL("kernel32.dll").NewProc("GetDiskFreeSpaceExW")

// FreeOn returns a function for the bytes available on the disk of dir.
func FreeOn(dir string) func() (uint64, error) {
	return func() (free uint64, err error) {
		name, err := syscall.UTF16PtrFromString(dir)
		if err != nil {
			return 0, err
		}
		if ok, _, err := getDiskFreeSpace.Call(uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(&free)), 0, 0); ok == 0 {
			return 0, err
		}
		return free, nil
	}
}

// Errors of Windows (System Error Codes).
const (
	errorHandleDiskFull = syscall.Errno(39)
	errorDiskFull       = syscall.Errno(112)
)

// Full reports whether err means a full disk.
func Full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, errorDiskFull) || errors.Is(err, errorHandleDiskFull)
}

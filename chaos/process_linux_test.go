package chaos_test

import "syscall"

// ownGroup starts a process in a group of its own, out of reach of an interrupt from the
// keyboard, and makes the kernel kill it when this process ends without its cleanups.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

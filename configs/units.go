package configs

import _ "embed"

// The files of the systemd services, which start /usr/bin/lmosd: for the system, for one user, and the user that the first one needs.
var (
	//go:embed systemd/lmosd.service
	SystemUnit string
	//go:embed systemd/lmosd-user.service
	UserUnit string
	//go:embed systemd/lmosd.sysusers
	SystemUsers string
)

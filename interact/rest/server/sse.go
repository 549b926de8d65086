package server

import "github.com/lmosd/lmosd/interact/rest"

func (v *visit) eventStream() *rest.EventStream {
	return rest.NewEventStream(v.w, v.o.pace.write, v.param("named") != "false")
}

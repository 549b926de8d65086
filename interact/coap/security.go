package coap

import (
	"cmp"
	"encoding/json"

	"github.com/lmosd/lmosd/interact/form"
)

// addKey puts the pre-shared key of a scheme into the target (TD 1.1 §5.3.3, PSKSecurityScheme). The identity is that of the
// credentials, else that of the description.
func addKey(all *form.Secrets, s *form.Scheme) error {
	if by := s.Form.Scheme(); by != "coaps" {
		return s.Errorf("offer a form whose href begins with coaps:", "wants a pre-shared key over %s, which lmosd has over coaps only", by)
	}
	err := all.AddLogin(s)
	var own struct{ Identity string }
	_ = json.Unmarshal(s.Raw, &own) // the identity is optional
	all.Login.Username = cmp.Or(all.Login.Username, own.Identity)
	return err
}

package td

// String returns the name of a field for people.
func (f Field) String() string {
	switch f {
	case FieldTitle:
		return "title"
	case FieldCapability:
		return "capability"
	case FieldAction:
		return "action"
	case FieldExample:
		return "example"
	case FieldDescription:
		return "description"
	case FieldDetail:
		return "detail"
	}
	return "text"
}

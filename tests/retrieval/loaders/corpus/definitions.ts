export default async function* f() {}
pub(crate) unsafe fn g::h() {}
func (d *Dog) Bark() {}
	class A.B::C:
    def m(self): pass
public   static final 
interface	$x
